"""The offline rules of `qnnbridge analyze` predict which models crash QNN's process; QNN runs the models here.

`tests/conformance/test_backend_suite.py` compares the rules with the node tests of onnx.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from lab.analyze_accuracy import cases, compare, simulator


@pytest.mark.simulator
def test_no_model_that_crashes_the_process_is_missed(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    models = cases.trap_set(tmp_path)
    tally = compare.tally_of(models, simulator.ask(models, "60"))
    assert len(tally.crashes) >= 3, "the simulator survives them now? Then the rule can go"
    assert tally.crashes_missed == []
