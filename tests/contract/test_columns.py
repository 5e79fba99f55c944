"""Outputs of mixed scales: boxes of 0 to 640 and scores of 0 to 1, as a detector's last Concat joins them.

All comparisons judge such columns separately: a session, `verify="raise"`, `session.verify`, `verify` and
`compile`. The scores of the faulty model are lost in half floats (1e-7 is below their smallest step).
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qnnbridge
from qnnbridge.errors import CompileFailed, NumbersDiffer
from tests import needs
from tests.comparisons import settled
from tests.contract.small_models import model, node, tensor
from tests.contract.test_numbers import open_session

pytest.importorskip("onnxruntime_qnn")
pytestmark = [pytest.mark.simulator, pytest.mark.process]

FORMS = needs.some(("float", "QDQ"))
ROWS = 2100


def detector(form: str, *, faulty: bool) -> onnx.ModelProto:
    """Return a detector with boxes from the first four columns of x, and scores of which one in twenty is not 0."""
    nodes = [
        node("Split", ["x", "sizes"], ["x_boxes", "x_scores"], axis=1),
        node("Mul", ["x_boxes", "pixels"], ["boxes"]),
        node("Sub", ["x_scores", "low"], ["above"]),
        node("Relu", ["above"], ["rest"]),
        node("Mul", ["rest", "up"], ["scores"]),
    ]
    constants: dict[str, Any] = {
        "sizes": np.asarray([4, 18], np.int64),
        "pixels": np.float32(640),
        "low": np.float32(0.95),
        "up": np.float32(18),
        "tiny": np.float32(1e-3),
        "large": np.float32(1e3),
    }
    boxes, scores = "boxes", "scores"
    if form == "QDQ":
        constants |= {"scale": np.float32(4 * 640 / 65535), "zero": np.uint16(32768)}
        nodes += [
            node("QuantizeLinear", ["boxes", "scale", "zero"], ["boxes_q"]),
            node("DequantizeLinear", ["boxes_q", "scale", "zero"], ["boxes_dq"]),
        ]
        boxes = "boxes_dq"
    if faulty:
        for number, factor in enumerate(["tiny", "tiny", "tiny", "large", "large", "large"]):
            nodes += [
                node("Mul", [scores, factor], [f"m{number}"]),
                node("Sin" if number == 2 else "Relu", [f"m{number}"], [f"s{number}"]),
            ]
            scores = f"s{number}"
    nodes.append(node("Concat", [boxes, scores], ["y"], axis=1))
    shape = [1, 22, ROWS]
    return model(nodes, [tensor("x", shape)], [tensor("y", shape)], constants, opset=21)


def feeds() -> dict[str, Any]:
    return {"x": np.random.default_rng(5).random((1, 22, ROWS), dtype=np.float32)}


@pytest.fixture(autouse=True)
def cache_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")
    monkeypatch.delenv("QNNBRIDGE_VERIFY")


@pytest.mark.parametrize("form", FORMS)
def test_a_detector_with_wrong_scores_differs_even_if_its_boxes_are_right(
    host: qnnbridge.Host, tmp_path: Path, form: str
) -> None:
    from qnnbridge_models.verify.verifier import VerifyOptions, verify_model

    path = tmp_path / "detector.onnx"
    onnx.save(detector(form, faulty=True), path)
    with open_session(host, str(path), cache=True) as session:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            (found,) = session.run(None, feeds())
            report = settled(session)
        asked = session.verify(feeds())
    assert found[0, :4].max() > 600
    assert ["columns 4 to 21 of axis 1" in str(one.message) for one in told] == [True]
    for one in (report, asked):
        assert one.state == "differs", one
        assert one.worst is not None
        assert one.worst.part == "columns 4 to 21 of axis 1"
        assert (one.snr_db or 0) < 5, "the figure is that of the worst columns"
        assert "dB in column" in one.worst.reason
    with pytest.raises(NumbersDiffer, match="columns 4 to 21 of axis 1"):
        open_session(host, str(path), verify="raise", cache=True)  # already known at the creation
    with pytest.raises(CompileFailed, match="of axis 1"):
        qnnbridge.compile(path, tmp_path / "out.onnx", soc_model="60", host=host)
    verified = verify_model(path, soc_model="60", how=VerifyOptions(bisect=False, extreme=False))
    assert verified.verdict == "differs"
    assert "of axis 1" in verified.reason


@pytest.mark.parametrize("form", FORMS)
def test_a_detector_with_right_scores_and_boxes_agrees(host: qnnbridge.Host, tmp_path: Path, form: str) -> None:
    path = tmp_path / "detector.onnx"
    onnx.save(detector(form, faulty=False), path)
    with open_session(host, str(path), verify="raise") as session:
        session.run(None, feeds())
        assert session.verified.state == "agrees", session.verified
        assert session.verified.worst is not None
        assert session.verified.worst.decisions == 1.0
    compiled = qnnbridge.compile(path, tmp_path / "out.onnx", soc_model="60", host=host)
    assert [one.level for one in compiled.validation.differences] == ["ok"]
