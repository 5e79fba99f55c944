"""The quantizer with cached lookups, cached weights and a cached float model writes the same bytes as without
caches.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import model_work_models as models
import numpy as np
import onnx
import pytest

from qnnbridge_models.command_options import QuantizeSettings
from qnnbridge_models.quantize import ort_quantizer, quick_lookups
from qnnbridge_models.quantize.ort_quantizer import CalibratedModel
from qnnbridge_models.quantize.quick_lookups import FloatModel, KnownWeights
from qnnbridge_models.quantize.samples import SampleSets, gather


def test_cached_lookups_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare folds and types that share cached data about weights."""
    from onnxruntime.quantization import quant_utils

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
        "other types": dataclasses.replace(calibrated, settings=other),
        "wider": wider,
        "the first again": calibrated,
    }
    used = []
    real = ort_quantizer.quick

    def quick(quantizer: object, float_model: FloatModel) -> contextlib.AbstractContextManager[None]:
        used.append(quantizer)
        return real(quantizer, float_model)

    monkeypatch.setattr(ort_quantizer, "quick", quick)
    found = {name: way.write(tmp_path / "quick.onnx").read_bytes() for name, way in ways.items()}
    monkeypatch.setattr(ort_quantizer, "quick", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(FloatModel, "inferred", lambda self: quant_utils.load_model_with_shape_infer(self.path))
    monkeypatch.setattr(FloatModel, "outline", property(lambda self: onnx.load(self.path)))
    for name, way in ways.items():
        assert way.write(tmp_path / "plain.onnx").read_bytes() == found[name], name
    assert len(set(found.values())) == 4, "the folds, types and ranges make other files"
    assert len(used) == len(ways)


def test_a_weight_is_quantised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the next fold no weight is quantised again, no scale of a weight is computed, and the float model is not
    read.
    """
    from onnxruntime.quantization import qdq_quantizer, quant_utils

    made = models.conv_net()
    samples: SampleSets = gather(made, (), random=4, seed=0, held_out=1)
    calls: list[str] = []

    def counted(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def count(*given: object, **named: object) -> object:
            calls.append(name)
            return real(*given, **named)

        monkeypatch.setattr(owner, name, count)

    once = {"quantize_onnx_initializer", "load_model_with_shape_infer", "compute_data_quant_params"}
    counted(quant_utils, "quantize_onnx_initializer")
    counted(quant_utils, "load_model_with_shape_infer")
    counted(qdq_quantizer, "compute_data_quant_params")
    calibrated: CalibratedModel = ort_quantizer.calibrate(
        models.saved(made, tmp_path / "m.onnx"),
        samples,
        QuantizeSettings().resolved,
        tmp_path,
        lambda *_: None,
        KnownWeights(),
    )
    calibrated.write(tmp_path / "q.onnx")
    assert set(calls) == once
    calls.clear()
    calibrated.without(frozenset((1,))).write(tmp_path / "q.onnx")
    assert calls == []
    wide = dataclasses.replace(QuantizeSettings().resolved, weight_type="int16")
    dataclasses.replace(calibrated, settings=wide).write(tmp_path / "q.onnx")
    assert set(calls) == {"quantize_onnx_initializer", "compute_data_quant_params"}, "another type of weights"


def test_a_large_float_model_is_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = FloatModel(models.saved(models.conv_net(), tmp_path / "m.onnx"), KnownWeights())
    first = model.inferred()
    first.graph.name = "changed"
    assert model.inferred().graph.name != "changed", "the quantizer has a copy"
    monkeypatch.setattr(quick_lookups, "_MOST_FLOAT_BYTES", 0)
    model = FloatModel(model.path, KnownWeights())
    assert model.inferred() is not model.inferred()
    assert model.inferred() == FloatModel(model.path, KnownWeights()).inferred()


def test_the_cache_key_of_a_quantised_weight_has_all_its_parameters(tmp_path: Path) -> None:
    model = FloatModel(models.saved(models.conv_net(), tmp_path / "m.onnx"), KnownWeights())
    weight, other = model.inferred().graph.initializer[:2]
    calls = []

    def quantised(one: Any, kind: int, scale: np.ndarray, *, axis: int | None = None) -> Any:
        calls.append((one.name, kind, scale.tolist(), axis))
        return one

    call = model.quantised(quantised)
    scale = np.array([1, 2], np.float32)
    for _ in range(2):
        call(weight, 1, scale)
        call(other, 1, scale)
        call(weight, 2, scale)
        call(weight, 1, scale + 1)
        call(weight, 1, scale.astype(np.float64))
        call(weight, 1, scale, axis=0)
        call(weight, 1, scale=scale)
    assert len(calls) == 7
