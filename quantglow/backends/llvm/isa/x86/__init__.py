"""x86-64: five feature levels, from SSE2 to AVX-512 with AMX.

``levels`` is the data and the entry point, ``instructions`` the instruction set; ``dot``, ``table``
and ``tiles`` have dot products, look-up tables and AMX, ``linking`` relocations, and
``tile_permission`` the request of AMX from Linux.
"""
