"""The offline rules of `qnnbridge analyze` against what QNN did with the node tests of onnx, as recorded, and with
models that end the process, asked anew. How it was recorded: `python -m lab.analyze_accuracy --record node`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from lab.analyze_accuracy import cases, compare, recorded, simulator

LEAST_SHARE = 0.97
# Every third test is judged here; `python -m lab.analyze_accuracy` judges all.
EVERY = 3


def test_the_rules_are_right_for_nearly_all_nodes_of_the_node_tests() -> None:
    truths = recorded.read()
    tally = compare.Tally()
    for number, case in enumerate(cases.node_tests()):
        if case.name in truths and (number % EVERY == 0 or truths[case.name].status == "crash"):
            compare.add(tally, case.name, cases.loadable(case.model), truths[case.name])
    assert tally.models > 1500 / EVERY, "another onnx has other tests; most are the same"
    assert tally.share >= LEAST_SHARE, str(tally)
    assert tally.crashes
    assert tally.crashes_missed == []


@pytest.mark.simulator
def test_no_model_that_ends_the_process_is_missed(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    models = cases.trap_set(tmp_path)
    tally = compare.tally_of(models, simulator.ask(models, "60"))
    assert len(tally.crashes) >= 3, "the simulator survives them now? Then the rule can go"
    assert tally.crashes_missed == []
