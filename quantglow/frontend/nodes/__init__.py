"""One ONNX node during import, and what the names around it stand for.

``context`` has ``Call``, one node as its importer sees it; ``values`` what an ONNX name stands for;
``folding`` evaluates nodes of known operands by ``onnx.reference``; ``bodies`` makes graphs of the
bodies of loops.
"""
