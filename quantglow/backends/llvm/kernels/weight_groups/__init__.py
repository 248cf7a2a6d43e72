"""Products with weights of 2, 4 or 8 bits in groups, and the rows of int8 that they multiply."""
