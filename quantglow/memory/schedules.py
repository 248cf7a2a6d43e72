"""Ways to find an order of execution, see ``arrange``."""

FAST, MEMORY = SCHEDULES = ("fast", "memory")
