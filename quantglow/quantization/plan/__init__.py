"""The plan of a quantized graph: the precision and the parameters of every value."""
