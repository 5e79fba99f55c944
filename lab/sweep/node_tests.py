"""The node tests of onnx as cases."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from qnnbridge_host.numerics.cases import Array, Case, SweepNode, SweepTensor

_NEWEST_OPSET: Final = 24
_MOST_GIVEN: Final = 1024


def node_tests(constants: bool) -> Iterator[tuple[str, Case]]:
    """Yield name and case of the tests with a single node and small tensors.

    Args:
        constants: make all inputs but the first constants of the model.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        tests = list(collect_testcases(None))
    for test in tests:
        case = _of_node_test(test, constants)
        if case is not None:
            yield test.name, case


def _of_node_test(test: Any, constants: bool) -> Case | None:
    from onnx import helper

    graph, sets = test.model.graph, test.data_sets
    if (
        len(graph.node) != 1
        or not sets
        or any(a.g.node for a in graph.node[0].attribute)
        or (constants and len(graph.input) < 2)
        or graph.initializer
    ):
        return None
    opset = next((one.version for one in test.model.opset_import if not one.domain), 0)
    names = [value.name for value in graph.input]
    tensors = {}
    for number, (name, given) in enumerate(zip(names, sets[0][0], strict=False)):
        if isinstance(given, (list, tuple)) or given is None:
            return None
        array: Array = np.asarray(given)
        known = {
            "float32": "float",
            "bool": "bool",
            "float16": "float16",
            "int32": "int32",
            "int64": "int64",
            "uint8": "uint8",
        }
        if array.dtype.name not in known or array.size > _MOST_GIVEN:
            return None
        values = array.ravel().tolist() if array.size else []
        if not np.isfinite(array.astype(np.float64)).all():
            return None
        tensors[name] = SweepTensor(tuple(array.shape), known[array.dtype.name], values, constants and number > 0)
    node = graph.node[0]
    attributes = {a.name: _plain(helper.get_attribute_value(a)) for a in node.attribute}
    if any(value is None for value in attributes.values()) or node.domain not in ("", "ai.onnx"):
        return None
    used = {name: one for name, one in tensors.items() if name in node.input}
    if not used or all(one.constant for one in used.values()):
        return None
    one = SweepNode(node.op_type, tuple(node.input), attributes, len(node.output))
    return Case(used, (one,), min(opset, _NEWEST_OPSET))


def _plain(value: Any) -> Any:
    """Return the value as JSON represents it; None if JSON cannot."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, (list, tuple)):
        found = [_plain(one) for one in value]
        return None if None in found else found
    return None
