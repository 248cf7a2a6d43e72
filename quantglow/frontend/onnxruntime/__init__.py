"""Models made ready for onnxruntime, without an import of it.

``opset_downgrade`` states a model under an older opset; ``rank_guards`` adds checks of ranks that
onnxruntime does not make; ``ort_quantizer_input`` prepares a model for onnxruntime's quantizer.
"""
