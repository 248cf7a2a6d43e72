"""Reductions: ``reduce`` chooses between ``middle_axis`` and ``byte_sums``; ``pool`` with its
``pool_tables``; ``softmax`` of integers."""
