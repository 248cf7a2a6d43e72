"""Calls of one model from many callers.

``infer_queue`` has the public class; ``calls`` the calls that wait, the threads that take them, the
batches that they become, and the measured speed of each batch size.
"""
