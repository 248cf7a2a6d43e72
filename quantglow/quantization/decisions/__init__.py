"""Decisions of the quantizer by value name, so that they hold at every shape.

``decisions`` are the data, ``serialization`` writes and reads them as JSON.
"""
