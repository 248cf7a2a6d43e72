"""Reductions, pools and softmax."""
