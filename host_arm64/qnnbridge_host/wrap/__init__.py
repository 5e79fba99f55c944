"""Context binaries without an ONNX file: their graphs, read by QNN's own library, and models around them."""
