"""Models of other frameworks: ``make test-frameworks``."""
