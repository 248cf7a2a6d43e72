"""What many threads, forks and repetitions do to one process; ``python -m tests.stress``."""
