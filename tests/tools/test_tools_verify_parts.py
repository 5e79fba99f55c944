"""Parts of `verify` that need no host: extreme inputs, judging, the rules about traps, what follows from answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qnnbridge_host.compile.compare import TOLERANCES
from qnnbridge_host.graph.dimensions import Dimensions
from qnnbridge_protocol.errors import Fail, HostCrashed, OptionError
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_tools.models.shared.sessions import RunAnswer
from qnnbridge_tools.models.verify import input_sets, traps, trying
from qnnbridge_tools.models.verify.input_sets import EXTREMES, applied, why_not
from qnnbridge_tools.models.verify.trying import judge

HALF = TOLERANCES["fp16"]


def names_for(dtype: str) -> set[str]:
    return {one.name for one in EXTREMES if applied(one, {"x": np.zeros((2, 8), dtype)}) is not None}


@pytest.mark.parametrize(
    ("dtype", "there", "not_there"),
    [
        ("float32", {"NaN", "infinity", "beyond half floats: up to 1e5"}, {"negative numbers (-1)"}),
        ("float16", {"NaN", "large: up to 1e4"}, {"beyond half floats: up to 1e5"}),
        ("int64", {"negative numbers (-1)", "integers beyond 32 bits"}, {"NaN"}),
        ("uint64", {"integers beyond 32 bits"}, {"negative numbers (-1)"}),
        ("int32", {"negative numbers (-1)"}, {"integers beyond 32 bits"}),
    ],
)
def test_each_extreme_goes_where_the_type_takes_it(dtype: str, there: set[str], not_there: set[str]) -> None:
    assert there <= names_for(dtype)
    assert not not_there & names_for(dtype)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8"])
def test_data_that_has_no_extremes_gets_none(dtype: str) -> None:
    assert names_for(dtype) == set()


def test_extremes_change_only_what_takes_them_and_keep_types() -> None:
    feeds = {
        "x": np.full((2, 9), 0.25, np.float32),
        "ids": np.ones(4, np.int64),
        "none": np.zeros((0, 3), np.float32),
    }
    for extreme in EXTREMES:
        changed = applied(extreme, feeds)
        assert changed is not None
        for name, value in feeds.items():
            assert (changed[name].dtype, changed[name].shape) == (value.dtype, value.shape)
    assert float(feeds["x"].max()) == 0.25, "the ordinary ones are left as they are"
    assert np.isnan(applied(EXTREMES[0], feeds)["x"]).any()  # type: ignore[index]


def test_numbers_that_may_be_sizes_are_not_made_huge() -> None:
    wide = next(one for one in EXTREMES if one.as_sizes)
    assert "Range" in why_not(wide, {"Range": 1, "Add": 2})
    assert why_not(wide, {"Gather": 1}) == ""
    assert why_not(EXTREMES[0], {"Range": 1}) == "", "NaN is no size"


def remark(expected: Any, found: Any, scale: float = 0.0) -> str:
    return judge(["y"], [np.asarray(expected)], [np.asarray(found)], {"y": scale}, HALF)[0].remark


def test_rounding_is_no_difference_and_more_is() -> None:
    big = np.linspace(-100, 100, 64)
    assert remark(big, big + 0.5) == ""
    assert "off by up to 20" in remark(big, big + 20)
    assert "cosine" in remark(big, np.where(np.abs(big) < 1e9, big[::-1] * 0.04, 0), scale=1e6)
    assert remark([1e-4, -1e-4], [-1e-4, 1e-4]) == "", "smaller than half floats can tell"
    assert remark([0.01] * 4, [0.02] * 4, scale=10.0) == "", "small against what the output usually is"
    assert "one side only" in remark([1.0, np.nan], [1.0, 2.0])
    assert "shape" in remark([1.0, 2.0], [1.0])


def test_integers_must_be_the_same_unless_they_are_many_or_steps() -> None:
    assert "1 of 1" in remark(np.int64([3]), np.int64([4]))
    assert remark(np.arange(100), np.where(np.arange(100) == 7, 8, np.arange(100))) == ""
    assert "50 of 100" in remark(np.arange(100), np.where(np.arange(100) < 50, -1, np.arange(100)))
    assert remark(np.uint8([10, 20]), np.uint8([12, 20])) == ""
    assert "steps" in remark(np.uint8([10, 20]), np.uint8([90, 20]))


VALUES: dict[str, tuple[Any, Any]] = {
    "int64-in-32-bits": (np.array([2**33 + 6, 1]), np.array([6, 1])),
    "nan-vanishes": (np.float32([np.nan, 1]), np.float32([0, 1])),
    "infinity-vanishes": (np.float32([np.inf, 1]), np.float32([65536, 1])),
    "half-range": (np.float32([1.0, 2.0]), np.float32([98304, 2.0])),
    "half-underflow": (np.float32([1e-10, 2.0]), np.float32([0, 2.0])),
}


@pytest.mark.parametrize("name", VALUES)
def test_each_rule_about_values_sees_its_trap_and_no_other(name: str) -> None:
    found = traps.of_values("y", *VALUES[name])
    assert [trap.name for trap in found] == [name]
    assert found[0].evidence.startswith("y: 1 of 2 values, the first at 0: ")


def test_every_rule_has_a_case_here_and_says_what_to_do() -> None:
    assert {trap.name for trap in traps.VALUE_TRAPS} == set(VALUES)
    assert {trap.name for trap in traps.NODE_TRAPS} == {name for name, _ in NODES}
    for rule in (*traps.VALUE_TRAPS, *traps.NODE_TRAPS):
        assert rule.words.endswith(".")
        assert rule.advice.endswith(".")


def test_what_is_only_rounding_shows_no_trap() -> None:
    same = np.float32([1.0, 1e5, 1e-4, 0])
    assert traps.of_values("y", same, same * np.float32(1.001)) == ()
    assert traps.of_values("y", np.array([2**33]), np.array([7])) == (), "wrong, and not by a multiple of 2**32"
    assert traps.of_values("y", np.array(["a"]), np.array(["b"])) == ()


NODES = [
    ("isnan", traps.NodeAt("IsNaN", {})),
    ("softmax-of-large-values", traps.NodeAt("Softmax", {}, (np.float32([1e4, 0]),))),
    ("average-pool-padding", traps.NodeAt("AveragePool", {"pads": [0, 0, 1, 1]})),
    ("max-pool-padding", traps.NodeAt("MaxPool", {"auto_pad": "SAME_UPPER"})),
    ("conv-transpose-padding", traps.NodeAt("ConvTranspose", {"pads": [1, 1]})),
    ("resize", traps.NodeAt("Resize", {"mode": "nearest"})),
    ("grid-sample-nearest", traps.NodeAt("GridSample", {"mode": "nearest"})),
    ("masked-attention", traps.NodeAt("com.microsoft.MultiHeadAttention", {})),
    ("negative-indices", traps.NodeAt("GatherElements", {}, (None, np.array([[-1, 0]])))),
]


@pytest.mark.parametrize(("name", "node"), NODES)
def test_each_rule_about_nodes_sees_its_trap(name: str, node: traps.NodeAt) -> None:
    assert [trap.name for trap in traps.of_node("n", node)] == [name]


@pytest.mark.parametrize(
    "node",
    [
        traps.NodeAt("AveragePool", {"pads": [0, 0], "auto_pad": "NOTSET"}),
        traps.NodeAt("Softmax", {}, (np.float32([1, 2]),)),
        traps.NodeAt("GatherElements", {}, (None, np.array([[1, 0]]))),
        traps.NodeAt("Conv", {"pads": [1, 1]}),
    ],
)
def test_a_harmless_node_is_not_accused(node: traps.NodeAt) -> None:
    assert traps.of_node("n", node) == ()


INPUTS = (NodeInfo("ids", "tensor(int64)", ("batch", "seq")), NodeInfo("x", "tensor(float)", (None, "?", "?")))


def test_a_name_that_stands_for_two_sizes_cannot_be_told_to_a_session() -> None:
    dims = Dimensions({"batch": 1, "seq": 8}, {("x", 0): 1, ("x", 1): 4, ("x", 2): 9})
    sizes = input_sets.sizes_of(INPUTS, Dimensions(dims.by_name, dims.by_axis), ())
    assert not sizes.all_named
    assert [node.shape for node in sizes.of(INPUTS)] == [(1, 8), (1, 4, 9)]
    assert input_sets.sizes_of(INPUTS[:1], Dimensions({"batch": 1, "seq": 8}), ()).all_named
    with pytest.raises(OptionError, match=r"x:0, \?"):
        input_sets.sizes_of(INPUTS, Dimensions({"batch": 1, "seq": 8}), ())


def trial(values: list[Any] | None, error: Any = None) -> trying.Trial:
    return trying.Trial("some", "extreme", True, {"x": np.zeros(1)}, RunAnswer(values, error))


class Answering:
    """A side of which nothing but the answer is used."""

    def __init__(self, answer: RunAnswer) -> None:
        self.given = answer

    def answer(self, feeds: Any, timeout_s: float | None = None) -> RunAnswer:
        return self.given


@pytest.mark.parametrize(
    ("cpu", "qnn", "status"),
    [
        (RunAnswer([np.ones(3)]), RunAnswer([np.ones(3)]), "agrees"),
        (RunAnswer([np.ones(3)]), RunAnswer([np.zeros(3)]), "differs"),
        (RunAnswer([np.ones(3)]), RunAnswer(None, Fail("no")), "failed"),
        (RunAnswer([np.ones(3)]), RunAnswer(None, HostCrashed("gone")), "failed"),
        (RunAnswer(None, Fail("no")), RunAnswer([np.ones(3)]), "unchecked"),
        (RunAnswer(None, Fail("no")), RunAnswer(None, Fail("no")), "refused"),
        (RunAnswer(None, Fail("no")), RunAnswer(None, HostCrashed("gone")), "failed"),
        (RunAnswer(None, HostCrashed("gone")), RunAnswer([np.ones(3)]), "skipped"),
    ],
)
def test_what_both_sides_answer_makes_the_row(cpu: RunAnswer, qnn: RunAnswer, status: str) -> None:
    prepared = trying.TrialSet((), True, ("y",), {"y": 1.0})
    side: Any = Answering(qnn)
    row = trying.try_on_qnn(side, trial(cpu.values, cpu.error), prepared, HALF)
    assert row.status == status
    assert row.died == (isinstance(qnn.error, HostCrashed))
    assert row.is_bad == (status in ("differs", "failed"))
    assert bool(row.reason) == (status in ("failed", "unchecked", "refused", "skipped"))


def test_the_words_for_extremes_are_unique() -> None:
    assert len({one.name for one in input_sets.EXTREMES}) == len(input_sets.EXTREMES)
