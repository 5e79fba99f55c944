"""Shape buckets in an application on Python 3.10, which has numpy and no onnx."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest
from labs import HERE, run_program
from tests.contract.text_encoder import Size, text_encoder

pytestmark = pytest.mark.simulator


def test_an_application_on_python_3_10_can_use_buckets(
    python310: Path, host_pythons: Mapping[str, str], tmp_path: Path
) -> None:
    model = tmp_path / "encoder.onnx"
    onnx.save(text_encoder(Size(layers=1, hidden=32, heads=2, intermediate=64, positions=32)), model)
    report = run_program(python310, HERE / "buckets_application.py", model, host_pythons["3.11"]).json()

    assert report["python"].startswith("3.10.")
    assert report["modules"] == []
    assert report["on_cpu"] == [0, 0]
    assert all(count > 20 for count in report["on_qnn"])
    assert report["difference"] < 0.02
    assert "'seq' is 17, the largest bucket for it is 16" in report["refusal"]
    assert report["padding"] is True
