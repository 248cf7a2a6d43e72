"""Machine code for x86-64, through LLVM.

From a program to code:

- ``levels``: the feature levels; ``target``: one of them as data; ``host``: this processor.
- ``kernels``: a generator of IR text for each primitive, written with ``builder``; ``kernel``: what
  a generator returns.
- ``emission``: a planned program as an ``EmittedProgram``: texts, calls, constants, arena.
- ``jit``: texts to addresses: LLVM, the cache on disk, the linker.
- ``runtime``: compiled programs, their memory and their threads; ``amx``: leave to use tiles.
"""
