"""The command line.

``entry`` is where the process begins.  ``main`` has the table of commands: ``commands`` (profile,
quantize, compile, run), ``bench``, ``inspect``, ``opt``, ``debug``, ``demo`` and ``calibrate``,
whose recipes ``recipe`` reads, with ``preprocessing`` and ``predictions``.  Shared: ``arguments``,
``files``, ``models``, ``timing``; ``data``: the embedded examples.
"""
