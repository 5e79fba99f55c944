"""The quantizer with quick lookups writes the same bytes as without them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import model_work_models as models
import numpy as np
import pytest

from qnnbridge_models.quantize import ort_quantizer
from qnnbridge_models.quantize.samples import SampleSets, gather
from qnnbridge_models.quantize.settings import QuantizeSettings


def test_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = models.conv_net()
    path = models.saved(made, tmp_path / "m.onnx")
    samples: SampleSets = gather(made, (), random=2, seed=0, held_out=0)
    settings = QuantizeSettings().resolved
    calibrated = ort_quantizer.calibrate(path, samples, settings, tmp_path, lambda *_: None)
    used = []
    real = ort_quantizer.quick

    def quick(quantizer: object) -> contextlib.AbstractContextManager[None]:
        used.append(quantizer)
        return real(quantizer)

    monkeypatch.setattr(ort_quantizer, "quick", quick)
    first = calibrated.write(tmp_path / "quick.onnx").read_bytes()
    monkeypatch.setattr(ort_quantizer, "quick", lambda _: contextlib.nullcontext())
    assert calibrated.write(tmp_path / "plain.onnx").read_bytes() == first
    assert used
    assert np.frombuffer(first, np.uint8).size > 0
