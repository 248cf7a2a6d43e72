"""Models as families of graphs, and the parts of them that onnxruntime runs.

README.md has the guide.
"""
