"""The real onnxruntime, for tests that compare the bridge with it: small models, and errors by class and text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest


def session(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], initializers: Sequence[Any] = ()
) -> Any:
    """Return a session of onnxruntime's CPU provider."""
    onnxruntime = pytest.importorskip("onnxruntime")
    helper = pytest.importorskip("onnx.helper")
    domains = [
        helper.make_opsetid("", 21),
        helper.make_opsetid("ai.onnx.ml", 3),
        helper.make_opsetid("com.microsoft", 1),
    ]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(initializers))
    model = helper.make_model(graph, opset_imports=domains, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def error_of(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the exception that the call raises; fail the test if it raises none."""
    try:
        result = call(*arguments)
    except Exception as error:
        return error
    pytest.fail(f"nothing was raised; the result is {result!r:.300}")


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result, or the error."""
    try:
        return call(*arguments)
    except Exception as error:
        return error


def assert_same_class(ours: BaseException, theirs: BaseException) -> None:
    """Return whether an ``except`` clause for their error catches ours: builtins by inheritance, others by name."""
    cls = type(theirs)
    if cls.__module__ == "builtins":
        assert isinstance(ours, cls), f"{ours!r} is no {cls.__name__}, but direct: {theirs!r}"
    else:
        assert type(ours).__name__ == cls.__name__, f"{ours!r} where direct: {theirs!r}"
