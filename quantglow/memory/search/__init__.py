"""The order of execution and the plan with the smallest arena, by search."""
