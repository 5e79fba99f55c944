"""Verdicts of `qnnbridge verify` against the truth, which ONNX Runtime alone gives; `python -m lab.verdict_accuracy`."""
