"""`quantize` compared with a handwritten version of the recipe of ONNX Runtime's documentation.

`python -m lab.quantize_truth` compares all models, and also on QNN.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests import needs
from tests.needs import length

pytest.importorskip("onnxruntime")

import model_work_models as models
from lab.quantize_truth import recipe
from lab.quantize_truth.__main__ import on_cpu, snr
from lab.quantize_truth.cases import CASES

from qnnbridge_host.graph import shapes
from qnnbridge_models.quantize import QuantizeResult, search
from qnnbridge_models.quantize.candidates import Candidate
from qnnbridge_models.quantize.ort_quantizer import Precision
from qnnbridge_models.quantize.search import FoundPrecision
from qnnbridge_protocol.errors import OptionError


class ByHand:
    """A model that the recipe has quantised.

    Its folder contains the model (m.onnx), the result of the recipe (r.onnx) and the calibration samples. snr: SNR
    of the recipe's result.
    """

    def __init__(self, name: str, folder: Path) -> None:
        case = next(case for case in CASES if case.name == name)
        rng = np.random.default_rng(20)
        samples = [case.make(rng) for _ in range(length(10, 20))]
        calibrating = samples[: len(samples) // 2]
        self._compared = samples[len(calibrating) :]
        self.folder = folder
        model = onnx.load(str(models.MODELS / case.file))
        shapes.fix(model, shapes.as_dimensions(dict(case.dims)))
        self._fixed = models.saved(model, folder / "m.onnx")
        (folder / "samples").mkdir()
        for number, feeds in enumerate(calibrating):
            np.savez(folder / "samples" / f"{number}.npz", **feeds)
        self._expected = on_cpu(self._fixed, self._compared)
        assert recipe.quantize(self._fixed, folder / "r.onnx", calibrating, 16) == ""
        self.snr = self._snr_of(folder / "r.onnx")

    def _snr_of(self, model: Path) -> float:
        """Return the SNR on samples that were not used for calibration."""
        return snr(self._expected, on_cpu(model, self._compared))

    def ours(self, path: Path, **options: Any) -> tuple[float, QuantizeResult]:
        """Return the SNR of our result, and the result."""
        result = models.quantize(self._fixed, path, self.folder / "samples", held_out=0, **options)
        return self._snr_of(path), result


@pytest.fixture(scope="module")
def text_direction(tmp_path_factory: pytest.TempPathFactory) -> ByHand:
    return ByHand("text direction (PaddleOCR)", tmp_path_factory.mktemp("recipe"))


def test_the_defaults_are_better_than_the_recipe(tmp_path: Path) -> None:
    by_hand = ByHand("MTCNN R", tmp_path)
    assert not recipe.leaves_weights_float(tmp_path / "r.onnx")
    assert by_hand.ours(tmp_path / "q.onnx")[0] > by_hand.snr


def test_the_recipe_is_used_if_8_bits_ruin_a_model(text_direction: ByHand, tmp_path: Path) -> None:
    """The recipe leaves all weights of this model in float, because they are outputs of Constant nodes."""
    ours, result = text_direction.ours(tmp_path / "q.onnx")
    by_hand = text_direction.snr
    assert recipe.leaves_weights_float(text_direction.folder / "r.onnx")
    assert ours >= by_hand - 0.1, "with the same samples it is the same model"
    assert any("the weights stay float" in change for change in result.changes)
    assert not any("to initializers" in change for change in result.changes), (
        "a change that was not made must not be reported"
    )
    assert not result.settings.per_channel


@needs.long_form
def test_16_bits_are_tried_if_8_bits_ruin_a_model(text_direction: ByHand, tmp_path: Path) -> None:
    """With QNN available the result has 16-bit weights; `python -m lab.quantize_truth` checks that, since QNN needs
    a minute.
    """
    narrow, result = text_direction.ours(tmp_path / "q.onnx", per_channel=True)
    assert narrow < text_direction.snr - 5
    (told,) = [change for change in result.changes if "weights of 16 bits would give" in change]
    assert float(re.findall(r"give (\d+\.\d) dB", told)[0]) > narrow + 5


def test_one_scale_for_all_channels_is_used_if_it_is_better(tmp_path: Path) -> None:
    """Use weights that are all positive: uint8 has twice as many steps as int8 for them."""
    rng = np.random.default_rng(3)
    names = ["x", *"abc", "y"]
    made = models.model(
        [
            onnx.helper.make_node("Conv", [a, f"w{n}"], [b], name=f"n{n}")
            for n, (a, b) in enumerate(pairwise(names))
        ],
        [models.value("x", [1, 8, 6, 6])],
        [models.value("y", [1, 8, 6, 6])],
        [models.constant(f"w{n}", rng.uniform(0.5, 1, (8, 8, 1, 1)).astype(np.float32)) for n in range(4)],
    )
    source = models.saved(made, tmp_path / "m.onnx")
    samples = models.samples_for(source, {}, 8, tmp_path / "samples")
    chosen = models.quantize(source, tmp_path / "q.onnx", samples)
    signed = models.quantize(source, tmp_path / "s.onnx", samples, weight_type="int8")
    assert chosen.settings.weight_type == "uint8"
    assert any("uint8" in change and "with int8 weights per channel" in change for change in chosen.changes)
    assert chosen.snr_db is not None
    assert signed.snr_db is not None
    assert chosen.snr_db > signed.snr_db + 2


def test_a_target_that_the_default_reaches_needs_no_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise AssertionError("searched")

    monkeypatch.setattr(search, "reach", fail)
    result = models.quantize(*sigmoid(tmp_path), target_snr=60.0)
    assert result.reached
    assert result.snr_db is not None
    assert result.snr_db > 60


@pytest.mark.parametrize(("only_on_qnn", "refused"), [(False, True), (True, False)])
def test_a_type_that_reaches_the_target_is_preferred_to_a_search_that_leaves_everything_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_on_qnn: bool, refused: bool
) -> None:
    """The type leaves a part of the model on the CPU, and the search found no solution without that."""
    monkeypatch.setattr(Candidate, "meets", lambda self, target, *, whole: only_on_qnn and not whole)
    monkeypatch.setattr(
        search,
        "reach",
        lambda trial, *_: FoundPrecision(Precision(frozenset(one.name for one in trial.index.nodes))),
    )
    if refused:
        with pytest.raises(OptionError, match="all nodes have to stay float"):
            models.quantize(*sigmoid(tmp_path), target_snr=60.0)
    else:
        assert models.quantize(*sigmoid(tmp_path), target_snr=60.0).precision.float_nodes == frozenset()


def sigmoid(folder: Path) -> tuple[Path, Path, Path]:
    """Return the model, the path of the result, and samples."""
    source = models.MODELS / "sigmoid.onnx"
    return source, folder / "q.onnx", models.samples_for(source, {}, 8, folder / "samples")
