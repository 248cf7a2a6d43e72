"""The high-level IR: immutable, typed nodes of named values.

- ``node``: what an operator is; ``graph``: inputs, outputs, all between; ``rewrite``: passes.
- ``printer`` writes a graph as text, ``text`` reads it, ``attributes`` are the literals in it.
- ``signature``: what a model declares before its free dimensions are known; ``case``: what a graph
  of it is made for; ``family``: its graphs, case by case; ``border``: float types other than
  float32, converted where arrays enter and leave.
- ``sharing``: equal constants of many graphs, held once; ``names``: unique names for new nodes.
"""
