"""Equivalent float graphs whose tensors share 256 steps better.

``equalization`` rescales channels within ``channel_groups``, ``channel_mixing`` changes
coordinates, ``input_grid`` aligns inputs.  ``float_runs`` computes values on samples,
``sample_statistics`` keeps what these need; ``changed_constants`` gives rewritten weights unique
names.
"""
