"""Loops whose bodies are models of their own.

``compiled_loop`` is what runs in place of onnxruntime, ``bodies`` the programs of a body,
``trip_blocks`` many trips at once, ``progress`` a loop that runs.
"""
