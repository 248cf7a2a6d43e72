"""Choices that are tried on calibration samples before weights are rounded.

``preparation`` runs the search: ``levers`` propose candidates (``prepared``), ``trials`` judges
them by their ``plan_noise``.  ``fake_quantization`` runs a plan without an int8 graph,
``output_noise`` compares its outputs, and ``checkpoints`` lets the next plan begin where it
differs.  ``range_choice`` chooses ranges; ``rounding_sensitivity`` measures the error that one
rounded value causes in the outputs, and ``choose_int16`` and ``fused_functions`` spend a time
budget on the most sensitive values.
"""
