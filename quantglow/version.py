"""The version of the package, as pyproject.toml has it."""

__version__ = "0.3.0.dev0"
