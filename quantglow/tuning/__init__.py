"""Choices of kernels and costs of processors that are measured.  Nothing is imported here."""
