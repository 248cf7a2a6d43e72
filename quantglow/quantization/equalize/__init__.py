"""Equivalent float graphs whose tensors use the 256 steps of int8 better.

``equalization`` rescales channels within ``channel_groups``, ``channel_mixing`` changes
coordinates, ``input_grid`` aligns inputs.  ``float_runs`` computes values on samples,
``sample_statistics`` collects their statistics; ``changed_constants`` names rewritten weights.
"""
