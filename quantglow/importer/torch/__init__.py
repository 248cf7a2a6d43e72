"""PyTorch models as ONNX.

``modules`` has modules and exported programs, ``graphs`` the FX graphs of ``torch.compile``, and
``samples`` the way from samples of the user to arrays by input name.
"""
