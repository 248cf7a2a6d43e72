"""Stress of one process by many threads, forks and repetitions; ``python -m tests.stress``."""
