"""ONNX models of compiled ones.

``onnx_models`` exports them with fixed or free dimensions, ``free_graphs`` makes the graphs with
free sizes and tells at which sizes they hold, ``equivalence`` compares two graphs by their forms,
and ``trial_runs`` by arrays.
"""
