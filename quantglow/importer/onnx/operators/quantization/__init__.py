"""Importers of quantized operators.

``linear`` has QuantizeLinear, DequantizeLinear and operators that move integers; ``qlinear`` the
QLinear operators, by their definitions; ``integer_products`` products whose parameters are computed
at run time.
"""
