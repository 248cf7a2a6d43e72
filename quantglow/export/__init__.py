"""Models for other programs: ``onnx`` writes QDQ models, ``bundle`` objects for C programs."""
