"""`qnnbridge setup-host`: makes an environment for the host, with the onnxruntime-qnn that fits the machine."""
