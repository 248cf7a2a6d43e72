"""Programs that run, from the inside out.

- ``build``: a graph becomes an executable.  ``partition`` cuts it where other code generators
  (``protocol``; ``fallback`` is onnxruntime's) take over, ``segments`` runs the pieces in a row;
  ``branches`` says which branches of conditions are worth pieces of their own, ``batches`` in how
  many parts a large batch runs.  ``precompile`` compiles kernels while weights are still rounded.
- ``specialisations``: the executables of one model, one for each shape it was fed.
- ``compiled``: the model a user holds; ``fallback_model``: the same face where onnxruntime runs
  it; ``newer_opsets``: its sessions.
- ``saving``: its file; ``archives``: what that holds, ``members``: how each part is compressed,
  ``stored_arrays``: how arrays are written.
"""
