"""x86-64: feature levels from SSE2 to AVX-512 with AMX."""
