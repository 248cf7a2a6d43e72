"""The user's calls.

``quantize_and_compile``, with its stages in ``pipeline``, under a contract in ``control``;
``compilation``: ``compile``; ``loading``: ``load``; ``stages``: all others.  ``models`` makes
families of graphs of what the user gives, ``origins`` has the graphs for further shapes and what a
file needs for them, ``samples`` reads calibration data, of which ``held_out`` keeps some for the
check, ``validation`` reads samples that the user has for it; ``fallback`` hands to onnxruntime what
cannot be compiled; ``named_passes`` has every pass by its name.

Nothing is imported here: a process that loads a saved model needs little of this.
"""
