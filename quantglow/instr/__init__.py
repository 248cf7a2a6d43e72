"""The low-level IR: instructions over typed views of buffers.

- ``program``: the IR; ``text`` reads what ``print`` writes of it; ``verify``: its rules.
- ``generate`` makes a program of a lowered graph.  ``copy_elision`` decides which values are
  computed inside a larger one, ``strides`` which moves of data are views, ``lifetimes`` from
  where to where a buffer lives, ``in_place`` which operands a result may replace.
"""
