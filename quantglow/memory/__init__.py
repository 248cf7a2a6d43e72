"""Memory of a program: order of execution, and offsets in one arena.  README.md has the guide."""
