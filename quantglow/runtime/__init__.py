"""Programs that run, from the inside out.

- ``build``: compilation of a graph to an executable.  ``partition`` cuts it where other code
  generators (``protocol``; ``fallback`` is onnxruntime's) take over, ``segments`` runs the parts;
  ``branches`` chooses branches of conditions that become segments, ``batches`` the number of pieces
  of a large batch.  ``precompile`` compiles kernels while weights are still rounded.
- ``specialisations``: the executables of one model, one for each shape of its inputs.
- ``compiled``: the model that a user holds; ``fallback_model``: the same interface for models that
  onnxruntime runs; ``newer_opsets``: its sessions.
- ``saving``: the file of a model; ``archives``: its members, ``members``: their compression,
  ``stored_arrays``: the forms of arrays.
"""
