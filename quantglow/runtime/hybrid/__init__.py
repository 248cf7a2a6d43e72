"""Models that are compiled in part: onnxruntime runs the rest.

``fallback_model`` has the models that a user holds, ``tails`` the parts behind operators that
decide shapes, ``loop`` the Loop whose body is compiled, and ``trips`` its trips.
"""
