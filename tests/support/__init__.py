"""Helpers of the tests: settings, comparisons, conditions of a run, builders and small networks."""
