"""Choices that are tried on calibration samples before weights are rounded.

``preparation`` runs the search; ``range_choice`` judges ranges, ``rounding_sensitivity`` the error
that one rounded value causes in the outputs, ``choose_int16`` and ``fused_functions`` spend a time
budget on the worst.  ``fake_quantization`` runs a plan without an int8 graph; ``checkpoints`` lets
the next plan begin where it differs.  ``plan_noise`` is the objective, ``output_noise`` compares.
"""
