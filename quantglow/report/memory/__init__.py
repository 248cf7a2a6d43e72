"""Bytes: ``sizes`` of weights before and after, the ``memory_map`` of the arena over time as text
and picture, and the ``footprint`` in flash and RAM of a target, by layer.
"""
