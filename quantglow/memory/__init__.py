"""Memory of a program: order of execution (``schedule``), passes over programs (``passes``), of
which ``share`` lets results replace operands, and an offset in one arena for every temporary
(``planner``).  ``linear_scan`` plans programs with too many buffers to compare.
"""
