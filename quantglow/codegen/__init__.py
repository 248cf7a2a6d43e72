"""Code generation: planned programs to machine code.

``llvm`` is the only backend.  It takes a planned program and returns an ``EmittedProgram``; it
never sees the high-level graph.
"""
