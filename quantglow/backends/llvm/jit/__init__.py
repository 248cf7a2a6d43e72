"""From IR text to the address of a function."""
