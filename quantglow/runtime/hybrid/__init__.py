"""Loops whose trips are computed, and models that onnxruntime runs whole.

``loop`` has the Loop whose body is compiled, ``trips`` its trips, ``loop_driver`` the executor of
loops in a graph, and ``fallback_model`` the models of which nothing is compiled.
"""
