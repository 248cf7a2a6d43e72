"""The plan of a quantized graph: the precision and the parameters of every value.

``plan`` decides on the float graph: ``scope`` is the user's choice, ``eligibility`` the operators'
own, ``float_heuristics`` (with ``spectra`` and ``detection_heads``) those that suffer most;
``tensor_ranges`` and ``params`` give scales, ``int16`` the wider values, ``functions`` those that
become tables; ``masks`` the values that hold infinities.
"""
