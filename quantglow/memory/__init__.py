"""Little memory: the order of execution (``schedule``), results in the place of operands
(``share``), and an offset in one arena for every temporary (``planner``)."""
