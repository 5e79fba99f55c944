"""Context binaries without an ONNX file: reading their graphs with QNN's own library, and building models around
them.
"""
