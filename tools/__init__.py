"""Commands for those who work on quantglow: ``python -m tools.NAME`` in the repository's root."""
