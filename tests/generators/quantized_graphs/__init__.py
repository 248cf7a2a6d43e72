"""Random graphs of integer and float operators, as quantization and lowering write them."""
