"""Calls of one model from many callers: ``infer_queue`` has the public class, ``waiting`` the calls
that wait and the threads that take them, ``joining`` the calls that become one batch, and
``batch_speed`` the measured speed of each batch."""
