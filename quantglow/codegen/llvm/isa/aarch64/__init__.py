"""AArch64: three feature levels, from Armv8.0 to dot products and matrix products of bytes.

``instructions`` has the levels, their detection and the operations of ``isa.interface``; ``dot``
has the dot products of bytes.  README.md says which processors have which level.
"""
