"""How `qnnbridge.ort` comes to be what ``import onnxruntime`` gives: in this process, and in those it starts."""
