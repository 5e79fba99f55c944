"""`quantize` against the recipe of ONNX Runtime's documentation, written by hand: the short form of a program.

`python -m tests.quantize_truth` does it for all models, and on QNN.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")

import model_work_models as models
from tests.quantize_truth import recipe
from tests.quantize_truth.__main__ import on_cpu, snr
from tests.quantize_truth.cases import CASES

from qnnbridge_host.graph import shapes


def test_the_defaults_are_better_than_the_recipe(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "MTCNN R")
    rng = np.random.default_rng(20)
    samples = [case.make(rng) for _ in range(20)]
    model = onnx.load(str(models.MODELS / case.file))
    shapes.fix(model, shapes.as_dimensions(dict(case.dims)))
    fixed = models.saved(model, tmp_path / "m.onnx")
    (tmp_path / "samples").mkdir()
    for number, feeds in enumerate(samples[:10]):
        np.savez(tmp_path / "samples" / f"{number}.npz", **feeds)
    expected = on_cpu(fixed, samples[10:])
    assert recipe.quantize(fixed, tmp_path / "r.onnx", samples[:10], 16) == ""
    assert not recipe.leaves_weights_float(tmp_path / "r.onnx")
    models.quantize(fixed, tmp_path / "q.onnx", tmp_path / "samples", held_out=0)
    by_hand = snr(expected, on_cpu(tmp_path / "r.onnx", samples[10:]))
    ours = snr(expected, on_cpu(tmp_path / "q.onnx", samples[10:]))
    assert ours > by_hand
