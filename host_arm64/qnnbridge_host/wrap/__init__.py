"""Context binaries without an ONNX file: read their graphs with QNN's own library, and build models around them."""
