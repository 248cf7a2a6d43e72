"""Machine code through LLVM.

From a program to code:

- ``isa``: instruction sets, a file for each; ``targets``: the processors that can be named.
- ``kernels``: a generator of IR text for each primitive, written with ``builder``; ``kernel``: its
  result.
- ``emission``: a planned program as an ``EmittedProgram``: texts, calls, constants, arena.
- ``jit``: texts to addresses: LLVM, the cache on disk, the linker.
- ``runtime``: compiled programs, their memory and their threads.
"""
