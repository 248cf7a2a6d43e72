"""Cortex-M: microcontrollers.

``levels``            the levels and LLVM's names of them
``instructions``      the operations of ``isa/interface.py``
``dot``               dot products of bytes
``integer_rounding``  requantization without floating point
``lanes``             vectors that are scalars for the processor
"""
