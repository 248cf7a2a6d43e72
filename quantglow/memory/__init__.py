"""Memory of a program: order of execution (``schedule``), results that replace operands
(``share``), and an offset in one arena for every temporary (``planner``).
"""
