"""Bytes of a file to a checked ``ModelProto``, and what can be said of it before an import.

README.md has the guide.
"""
