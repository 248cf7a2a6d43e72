"""Processes, threads, signals and operating systems.  README.md has the guide."""
