"""RISC-V 64: scalars (``rv64gc``) and vectors of at least 128 bits (``rv64gcv``).

``levels`` has the levels, ``instructions`` the operations, ``dot`` the dot products.  int8
activations are stored as they are, signed.  Code is generated, not loaded into this process.
"""
