"""WebAssembly with vectors of 128 bits: one level, ``wasm32``.

``levels`` has the level, ``instructions`` the operations.  int8 activations are stored as they
are, signed.  Code is generated, not loaded into this process.
"""
