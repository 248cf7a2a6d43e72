"""AArch64: three feature levels, from Armv8.0 to dot products and matrix products of bytes."""
