"""Programs from graphs of primitives, with few buffers.

``generate`` makes the instructions; ``copy_elision`` finds values that are computed inside a larger
one or in the memory of an input; ``sharing`` lets results take over buffers of operands that die.
"""
