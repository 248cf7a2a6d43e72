"""Runtimes, child processes and arguments that the benchmarks share."""
