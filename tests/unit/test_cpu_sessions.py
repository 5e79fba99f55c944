"""Sessions on the CPU provider in this process: models of very many inputs."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fakes import models as build

from qnnbridge_host.engine import cpu
from qnnbridge_protocol.errors import OrtError

COUNT = cpu._MANY_INPUTS + 1


@pytest.fixture(scope="module")
def session() -> object:
    inputs = [build.tensor(f"n{n}", ["N"]) for n in range(COUNT)]
    nodes = [build.node("Sum", [value.name for value in inputs], ["sum"]), build.node("Neg", ["sum"], ["negative"])]
    outputs = [build.tensor(name, ["N"]) for name in ("sum", "negative")]
    return cpu.open_session(build.model_bytes(nodes, inputs, outputs), "it")


def feeds(dtype: type = np.float32) -> dict[str, np.ndarray]:
    return {f"n{n}": np.array([n, 1], dtype) for n in range(COUNT)}


def test_a_stack_of_many_inputs_gives_the_same_results_as_single_runs(session: object) -> None:
    total = [COUNT * (COUNT - 1) / 2, COUNT]
    first, second = cpu.run(session, feeds(), "it")
    assert (first.tolist(), second.tolist()) == (total, [-one for one in total])
    (only,) = cpu.run(session, feeds(), "it", ["negative"])
    assert only.tolist() == [-one for one in total]


@pytest.mark.parametrize("fault", ["missing", "type", "name"])
def test_wrong_feeds_are_reported(session: object, fault: str) -> None:
    given = feeds(np.float64 if fault == "type" else np.float32)
    if fault == "name":
        given["other"] = given["n1"]
    if fault == "missing":
        del given["n7"], given["n8"]
        given |= {f"z{n}": given["n1"] for n in range(2)}
    with pytest.raises(OrtError):
        cpu.run(session, given, "it")
