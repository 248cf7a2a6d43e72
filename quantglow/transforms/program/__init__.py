"""Programs from graphs of primitives, with few buffers.

``generate`` makes the instructions; ``copy_elision`` finds values that are computed inside a larger
one or in the memory of an input; ``sharing`` lets results take over buffers of operands that die.

To add a pass, write a function from ``Program`` to ``Program`` and enter it in ``PROGRAM_PASSES``
(``sharing``), which run in order.  ``tests/properties/test_loop_laws.py`` compares results with
and without them.
"""
