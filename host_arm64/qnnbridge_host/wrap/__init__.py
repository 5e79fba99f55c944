"""Read the graphs of context binaries without an ONNX file with QNN's own library, and build models for them."""
