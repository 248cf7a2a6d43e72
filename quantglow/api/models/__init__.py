"""Models as families of graphs, and the parts of them that onnxruntime runs.

``families`` opens a model or graph as a family of float or int8 graphs, for any shapes.
``late_families`` are those of models in which nodes decide sizes.
``fallback`` hands a model to onnxruntime, whole or in part, or lets it compile on first use.
``parts`` runs models of free shapes that cannot be compiled to their end.
"""
