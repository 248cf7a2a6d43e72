"""x86-64: five feature levels, from SSE2 to AVX-512 with AMX."""
