"""`qnnbridge exec`: runs an unmodified program with ``onnxruntime`` answered by qnnbridge."""
