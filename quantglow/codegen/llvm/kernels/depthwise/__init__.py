"""Depthwise convolution: one input channel for each output channel."""
