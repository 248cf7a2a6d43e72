"""Compiled programs at run time."""
