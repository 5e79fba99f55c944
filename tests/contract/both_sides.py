"""Create the same session twice, with onnxruntime in this process and through the bridge. CPU provider."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnxruntime
import pytest

import qnnbridge
from qnnbridge_protocol.values import equal_bits
from tests.contract.small_models import CPU

LOG_TIMEOUT_S = 10
# Function that sets session options. Its arguments are the module (onnxruntime or qnnbridge) and the
# SessionOptions.
Prepare = Callable[[Any, Any], None]


@contextlib.contextmanager
def two_sessions(
    host: qnnbridge.Host, model: Any, prepare: Prepare | None = None, **keywords: Any
) -> Iterator[tuple[Any, qnnbridge.InferenceSession]]:
    """Yield the session of onnxruntime and that of qnnbridge. keywords: further arguments of both."""
    theirs, ours = onnxruntime.SessionOptions(), qnnbridge.SessionOptions()
    theirs.log_severity_level = ours.log_severity_level = 4
    if prepare is not None:
        prepare(onnxruntime, theirs)
        prepare(qnnbridge, ours)
    direct = onnxruntime.InferenceSession(model, theirs, providers=[CPU], **keywords)
    with qnnbridge.InferenceSession(model, ours, providers=[CPU], host=host, **keywords) as bridged:
        yield direct, bridged


def nodes(args: Any) -> list[tuple[str, str, list[Any]]]:
    """Return inputs or outputs as plain data."""
    return [(arg.name, arg.type, list(arg.shape)) for arg in args]


def assert_same_run(direct: Any, bridged: Any, feeds: Mapping[str, Any], names: Any = None) -> Any:
    """Check that both sessions return the same outputs bit for bit, or raise the same error class.

    Return the outputs, or the error, of the direct session.
    """
    try:
        expected = direct.run(names, dict(feeds))
    except Exception as error:
        assert_same_error(error, lambda: bridged.run(names, dict(feeds)))
        return error
    result = bridged.run(names, dict(feeds))
    assert list(map(type, result)) == list(map(type, expected))
    assert equal_bits(result, expected)
    return expected


def assert_same_error(theirs: Exception, call: Callable[[], Any]) -> None:
    """Check that an ``except`` clause for onnxruntime's error catches ours, with the same number and name."""
    with pytest.raises(type(theirs)) as caught:
        call()
    if str(theirs).startswith("[ONNXRuntimeError]"):
        # If several inputs are wrong, each side may report a different one first.
        assert str(caught.value).split(" : ")[:3] == str(theirs).split(" : ")[:3]


def is_logged(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    """Wait until the log contains the text, which another thread may write; return whether it does."""
    until = time.monotonic() + LOG_TIMEOUT_S
    while text not in caplog.text and time.monotonic() < until:
        threading.Event().wait(0.005)
    return text in caplog.text
