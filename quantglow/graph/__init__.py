"""The high-level IR: immutable, typed nodes of named values.

- ``node``: operators and their fields; ``traits``: facts that operators declare; ``graph``: inputs,
  outputs, all between; ``rewrite``: passes.
- ``printer`` writes a graph as text, ``text`` reads it, ``attributes`` are the literals in it.
- ``signature``: the declared ends of a model before its free dimensions are known; ``case``: the
  shapes and values that a graph of it serves; ``family``: its graphs, case by case.
- ``border``: float types other than float32, converted as arrays enter and leave.
- ``sharing``: equal constants of many graphs, held once; ``names``: unique names for new nodes.
"""
