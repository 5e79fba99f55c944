"""Findings and decisions of a session are reported by every later process that relies on them.

Each verdict of a session has a case. Three processes with one cache run all cases: the first process finds the
verdicts, the others get them from the cache or find them again. All processes must report the same. All cases have
different models, so that no case finds the verdict of another one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from lab.sweep.cases import float_model

from qnnbridge_host.model.known_wrong import table
from qnnbridge_host.numerics.cases import Case
from tests import needs
from tests.conformance.real_models import SOC_MODEL
from tests.contract.small_models import model, node, tensor
from tests.contract.test_buckets_outputs import convolution, mean_of_the_masked, one_input
from tests.contract.test_columns import detector
from tests.contract.test_numbers import edge_padding, unary

pytest.importorskip("onnxruntime_qnn")
# One process compiles all models: 25 s of a processor.
TIMEOUT_S = 250
pytestmark = [pytest.mark.simulator, pytest.mark.process, pytest.mark.timeout(3 * TIMEOUT_S)]

CHIP_60_FAULT = next(row for row in table() if row.name == "conv-equal-padding")

# Prints the messages and facts of each case's session as JSON, without times.
PROGRAM = """
import json, logging, sys, time, warnings
import numpy as np
import qnnbridge

said = []

class Keep(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())

logging.getLogger("qnnbridge").addHandler(Keep())
logging.getLogger("qnnbridge").setLevel(logging.INFO)
warnings.showwarning = lambda message, *_: said.append(f"{type(message).__name__}: {message}")
warnings.simplefilter("always")

def facts_of(path, sizes, soc_model="60", **keywords):
    facts = {}
    options = [{"soc_model": soc_model}]
    with qnnbridge.InferenceSession(path, provider_options=options, cache=True, **keywords) as session:
        facts["fixed"] = list(session.fixed)
        facts["cache"] = session.cache.state
        for _ in range(2):
            feeds = {}
            for node in session.get_inputs():
                shape = [sizes.get(dim, dim) for dim in node.shape]
                rng = np.random.default_rng(3)
                feeds[node.name] = np.abs(rng.standard_normal(shape)).astype(np.float32) + 1
            session.run(None, feeds)
            while session.verified.state == "pending":
                time.sleep(0.02)
        placement, numbers, buckets = session.placement, session.verified, session.buckets
        facts["placement"] = [placement.qnn_nodes, placement.cpu_nodes, placement.cause]
        facts["verified"] = [numbers.state, numbers.cause, numbers.reason]
        if buckets is not None:
            facts["buckets"] = [buckets.padding, buckets.decided, dict(buckets.uncut), dict(buckets.cut)]
    return facts

found = {}
for name, (path, settings) in json.load(sys.stdin).items():
    said.clear()
    try:
        facts = facts_of(path, **settings)
    except Exception as error:
        facts = {"raised": [type(error).__name__, str(error)], "cache": None}
    found[name] = {"said": list(said), "facts": facts}
print(json.dumps(found))
"""

Words = str


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A case.

    Args:
        made: creates the model.
        settings: keywords of the session, and sizes of free dimensions of the call.
        said: a pattern in the output of each process.
        shown: condition for the facts of the session.
    """

    made: Callable[[], onnx.ModelProto | bytes]
    settings: dict[str, Any]
    said: Words = ""
    shown: Callable[[dict[str, Any]], bool] = lambda facts: True


def sigmoid() -> onnx.ModelProto:
    return one_input([node("Sigmoid", ["x"], ["y"])], {"y": [1, 3, "seq"]})


def known_fault() -> onnx.ModelProto:
    return float_model(Case.from_words(CHIP_60_FAULT.example))


def with_a_node_for_the_cpu() -> onnx.ModelProto:
    return model(
        [node("Sigmoid", ["x"], ["a"]), node("Det", ["a"], ["d"]), node("Neg", ["d"], ["y"])],
        [tensor("x", [2, 4, 4])],
        [tensor("y", [2])],
    )


def without_numbers() -> onnx.ModelProto:
    return model(
        [node("Neg", ["x"], ["n"]), node("Sqrt", ["n"], ["y"])], [tensor("x", [2, 4])], [tensor("y", [2, 4])]
    )


def of_two_sizes() -> onnx.ModelProto:
    return model(
        [node("MatMul", ["x", "z"], ["m"]), node("Reshape", ["m", "flat"], ["y"])],
        [tensor("x", ["a", 4]), tensor("z", [4, "b"])],
        [tensor("y", ["n"])],
        {"flat": np.asarray([-1], np.int64)},
    )


def convolution_of_an_odd_length() -> onnx.ModelProto:
    weights = np.random.default_rng(1).standard_normal((4, 3, 3)).astype(np.float32)
    nodes = [node("Conv", ["x", "w"], ["y"], strides=[2], pads=[1, 1])]
    return one_input(nodes, {"y": [1, 4, "length"]}, {"w": weights})


BUCKETS = {"buckets": {"seq": [8, 16]}, "sizes": {"seq": 5}}
DIFFERS = lambda facts: facts["verified"][0] == "differs"  # noqa: E731

VERDICTS = {
    "numbers that differ": Verdict(
        edge_padding, {"fix": False, "soc_model": SOC_MODEL}, r"NumbersWarning: .*different results on QNN", DIFFERS
    ),
    "columns that differ": Verdict(
        lambda: detector("QDQ", faulty=True), {}, r"NumbersWarning: .* in column \d+ of axis 1", DIFFERS
    ),
    "numbers that differ, refused": Verdict(
        edge_padding,
        {"fix": False, "soc_model": SOC_MODEL, "verify": "raise"},
        shown=lambda facts: facts["raised"][0] == "NumbersDiffer",
    ),
    "numbers that agree": Verdict(
        lambda: unary("Sigmoid"), {"verify": "raise"}, shown=lambda facts: facts["verified"][0] == "agrees"
    ),
    "inputs that show nothing": Verdict(without_numbers, {}, shown=lambda facts: facts["verified"][0] == "unknown"),
    "a fault that is known": Verdict(known_fault, {"fix": False}, "is known to compute"),
    "a fault that was cured": Verdict(
        known_fault, {}, "were rewritten", lambda facts: any("conv-padding" in line for line in facts["fixed"])
    ),
    "nodes on the CPU": Verdict(
        with_a_node_for_the_cpu,
        {"fallback": "cpu"},
        shown=lambda facts: facts["placement"][1] == 1 and "Det" in facts["placement"][2],
    ),
    "all nodes on the CPU": Verdict(
        lambda: model([node("Det", ["x"], ["y"])], [tensor("x", [2, 4, 4])], [tensor("y", [2])]),
        {"fallback": "cpu"},
        "CpuFallbackWarning: .*runs on the CPU",
    ),
    "a refusal": Verdict(with_a_node_for_the_cpu, {}, shown=lambda facts: facts["raised"][0] == "PlacementRefused"),
    "padding that changes results": Verdict(
        convolution,
        {**BUCKETS, "pad": 0},
        "padding changes results",
        lambda facts: DIFFERS(facts) and "next to the padding" in facts["buckets"][0],
    ),
    "padding that changes results, refused": Verdict(
        convolution,
        {**BUCKETS, "pad": 0, "verify": "raise"},
        "padding changes results",
        lambda facts: "with and without padding" in facts["raised"][1],
    ),
    "padding that changes nothing": Verdict(
        sigmoid,
        {**BUCKETS, "pad": 0},
        shown=lambda facts: facts["verified"][0] == "agrees" and not facts["buckets"][0],
    ),
    "a padding that was decided": Verdict(
        sigmoid, BUCKETS, "chosen: pad=0", lambda facts: facts["buckets"][1] == "pad=0"
    ),
    "windows that were decided": Verdict(
        convolution, BUCKETS, "chosen: chunk='seq'", lambda facts: facts["buckets"][1] == "chunk='seq'"
    ),
    "padding that cannot be decided": Verdict(
        lambda: one_input([node("ReduceMax", ["x"], ["y"], axes=[2])], {"y": [1, 3, 1]}),
        BUCKETS,
        shown=lambda facts: "with zeros changes" in facts["raised"][1] and "pad='edge'" in facts["raised"][1],
    ),
    "a mask that makes padding right": Verdict(
        mean_of_the_masked, BUCKETS, "chosen: pad=0", lambda facts: facts["verified"][0] == "agrees"
    ),
    "an output that cannot be cut": Verdict(
        of_two_sizes,
        {"buckets": {"a": [4], "b": [4]}, "pad": 0, "sizes": {"a": 4, "b": 4}},
        "output 'y' is not cut",
        lambda facts: "more than one size" in facts["buckets"][2]["y"],
    ),
    "an output of another length": Verdict(
        convolution_of_an_odd_length,
        {"buckets": {"seq": [8]}, "pad": 0, "sizes": {"seq": 5}},
        r"has the size \(seq \+ 1\) // 2",
    ),
}

NAMES = needs.some(VERDICTS)

_FIGURES = re.compile(r"\d+(\.\d+)? ?(s|ms|dB|MiB)\b|in \d[\d.,]*")
# Lines that are not verdicts: process events, progress of the compiler and of slow calls, and ONNX Runtime's own
# lines.
_NO_VERDICT = re.compile(
    r"is being (?:compiled|rewritten)|waiting for another|host generation|at its first call|:onnxruntime:"
    r"|takes longer than"
)


def one_process(folder: Path, cases: str) -> dict[str, Any]:
    """Run all cases in one process and return its output by name."""
    environ = {
        **{name: text for name, text in os.environ.items() if name != "QNNBRIDGE_VERIFY"},
        "QNNBRIDGE_CACHE": "1",
        "QNNBRIDGE_CACHE_DIR": str(folder / "cache"),
        "QNNBRIDGE_STATE_DIR": str(folder / "state"),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=cases, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    for one in found.values():
        one["said"] = sorted({_FIGURES.sub("#", line) for line in one["said"] if not _NO_VERDICT.search(line)})
    return found


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("verdicts")
    cases: dict[str, Any] = {}
    for number, name in enumerate(NAMES):
        verdict = VERDICTS[name]
        made = verdict.made()
        proto = onnx.load_model_from_string(made) if isinstance(made, bytes) else made
        proto.producer_name = name
        path = folder / f"{number}.onnx"
        onnx.save_model(proto, str(path))
        cases[name] = [str(path), {"sizes": {}, **verdict.settings}]
    return [one_process(folder, json.dumps(cases)) for _ in range(3)]


@pytest.mark.parametrize("name", NAMES)
def test_every_process_reports_the_verdict_of_the_first_process(name: str, processes: list[dict[str, Any]]) -> None:
    verdict = VERDICTS[name]
    cold, warm, again = (found[name] for found in processes)
    for found in (cold, warm, again):
        assert any(re.search(verdict.said, one) for one in [*found["said"], *([] if verdict.said else [""])]), found
        assert verdict.shown(found["facts"]), found
    states = [found["facts"].pop("cache") for found in (cold, warm, again)]
    assert states[0] in ("miss", "off", None), states
    assert "miss" not in states[1:], states
    assert warm["facts"] == again["facts"] == cold["facts"]
    assert warm["said"] == again["said"] == cold["said"]
