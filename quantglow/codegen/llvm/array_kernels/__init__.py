"""Kernels on NumPy arrays whose sizes are operands: the native code of calibration.

Few kernels serve all networks, so that nothing is compiled for a model that is only calibrated.
"""
