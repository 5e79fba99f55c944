"""Compare verdicts of `qnnbridge verify` with results of ONNX Runtime alone: `python -m lab.verdict_accuracy`."""
