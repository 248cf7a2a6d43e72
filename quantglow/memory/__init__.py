"""Memory of a program: order of execution, shared buffers, offsets in one arena."""
