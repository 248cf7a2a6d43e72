"""Programs that run, from the inside out.

- ``build``: a graph becomes an executable.  ``partition`` cuts it where other code generators
  (``protocol``; ``delegation`` is onnxruntime's) take over, ``segments`` runs the pieces in a row;
  ``batches`` says in how many parts a large batch runs.
- ``specialisations``: the executables of one model, one for each shape it was fed.
- ``compiled``: the model a user holds; ``delegated``: the same face where onnxruntime runs it.
- ``saving``: its file.
"""
