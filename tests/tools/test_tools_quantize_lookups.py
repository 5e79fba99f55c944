"""The quantizer with quick lookups and known weights writes the same bytes as without them."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import model_work_models as models
import numpy as np
import pytest

from qnnbridge_models.quantize import ort_quantizer
from qnnbridge_models.quantize.ort_quantizer import CalibratedModel
from qnnbridge_models.quantize.quick_lookups import KnownWeights
from qnnbridge_models.quantize.samples import SampleSets, gather
from qnnbridge_models.quantize_settings import QuantizeSettings


def test_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds and types that share what is known of weights."""
    made = models.conv_net()
    path = models.saved(made, tmp_path / "m.onnx")
    samples: SampleSets = gather(made, (), random=4, seed=0, held_out=1)
    settings = QuantizeSettings().resolved
    other = dataclasses.replace(settings, weight_type="uint8", per_channel=False, symmetric_weights=False)
    calibrated = ort_quantizer.calibrate(path, samples, settings, tmp_path, lambda *_: None, KnownWeights())
    wider = calibrated.with_headroom()
    assert wider is not None
    ways = {
        "first": calibrated,
        "a fold": calibrated.without(frozenset((1,))),
        "other types": calibrated.with_settings(other),
        "wider": wider,
        "the first again": calibrated,
    }
    used = []
    real = ort_quantizer.quick

    def quick(quantizer: object, known: KnownWeights) -> contextlib.AbstractContextManager[None]:
        used.append(quantizer)
        return real(quantizer, known)

    monkeypatch.setattr(ort_quantizer, "quick", quick)
    found = {name: way.write(tmp_path / "quick.onnx").read_bytes() for name, way in ways.items()}
    monkeypatch.setattr(ort_quantizer, "quick", lambda *_: contextlib.nullcontext())
    for name, way in ways.items():
        assert way.write(tmp_path / "plain.onnx").read_bytes() == found[name], name
    assert len(set(found.values())) == 4, "the folds, types and ranges make other files"
    assert len(used) == len(ways)


def test_a_weight_is_quantised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the next fold no weight is quantised again: only ranges of activations are others."""
    from onnxruntime.quantization import quant_utils

    made = models.conv_net()
    samples: SampleSets = gather(made, (), random=4, seed=0, held_out=1)
    calls = []
    real = quant_utils.quantize_onnx_initializer

    def counted(*given: object, **named: object) -> object:
        calls.append(given)
        return real(*given, **named)

    monkeypatch.setattr(quant_utils, "quantize_onnx_initializer", counted)
    calibrated: CalibratedModel = ort_quantizer.calibrate(
        models.saved(made, tmp_path / "m.onnx"),
        samples,
        QuantizeSettings().resolved,
        tmp_path,
        lambda *_: None,
        KnownWeights(),
    )
    calibrated.write(tmp_path / "q.onnx")
    first = len(calls)
    calibrated.without(frozenset((1,))).write(tmp_path / "q.onnx")
    assert first
    assert len(calls) == first


def test_what_is_known_has_the_whole_argument_as_its_key() -> None:
    known = KnownWeights()

    def sums(values: np.ndarray, kind: int, *, scale: float = 1.0) -> tuple[np.ndarray, str]:
        return values.sum() * kind * scale, str(values.dtype)

    call = known.kept(sums)
    one = np.array([1, 2], np.float32)
    assert call(one, 1) == (3, "float32")
    assert call(one, 2) == (6, "float32")
    assert call(one, 1, scale=2.0) == (6, "float32")
    assert call(np.array([1, 3], np.float32), 1) == (4, "float32")
    assert call(np.array([1, 2], np.int32), 1) == (3, "int32")
    found = call(one, 1)[0]
    found += 1
    assert call(one, 1)[0] == 3, "what is given is a copy"
