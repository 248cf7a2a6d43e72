"""One ONNX node during import, and what the names around it stand for.  README.md has the table."""
