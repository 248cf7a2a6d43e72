"""Models made ready for onnxruntime, without an import of it.

``opset_downgrade`` states a model under an older opset; ``rank_guards`` adds checks of ranks that
onnxruntime does not make, with the names and copies of results of ``left_out_results``;
``ort_quantizer_input`` prepares a model for onnxruntime's quantizer.
"""
