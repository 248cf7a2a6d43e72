"""Models of other frameworks: ``make test-frameworks``, with the extra ``frameworks`` installed.

``conftest`` leaves them out of other runs; ``networks``: real models in PyTorch; ``test_pytorch``:
modules and exported programs; ``test_torch_compile``: the backend of ``torch.compile``;
``test_pt2e``: models that PyTorch quantized.
"""
