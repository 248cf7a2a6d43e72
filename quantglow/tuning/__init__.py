"""Choices of kernels and costs of processors that are measured.  Nothing is imported here.

``tasks``: the convolutions of a program that can be tuned; ``trial``: kernels of one of them in
memory, compared and timed; ``measuring``: the same in child processes; ``core_fit``: costs of the
processor's core.
"""
