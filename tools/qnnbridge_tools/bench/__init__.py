"""`qnnbridge bench`: what the bridge costs on this machine, against ONNX Runtime in one process."""
