"""What cannot cross a process is refused with its cause and what to do instead, wherever the page says so."""

from __future__ import annotations

import functools
import logging
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("onnxruntime")

import qnnbridge.ort as ort
from qnnbridge.errors import OptionError
from qnnbridge.ort.capi import onnxruntime_pybind11_state as bindings
from tests.dropin.ort_table import REFUSED
from tests.dropin.wrong_uses import MUL


def callback(*_: Any) -> None:
    """What an application would pass."""


ATTEMPTS: dict[str, Callable[[], Any]] = {
    "OrtSyncStream": lambda: ort.OrtSyncStream(),
    "OrtEpDevice.create_sync_stream": lambda: ort.get_ep_devices()[0].create_sync_stream(),
    "SessionOptions.set_ep_context_data_read_func": lambda: ort.SessionOptions().set_ep_context_data_read_func(
        callback, 1
    ),
    "SessionOptions.set_provider_selection_policy_delegate": lambda: (
        ort.SessionOptions().set_provider_selection_policy_delegate(callback)
    ),
    "SessionOptions.set_load_cancellation_flag": lambda: ort.SessionOptions().set_load_cancellation_flag(True),
    "create_and_register_allocator": lambda: ort.create_and_register_allocator(ort.OrtMemoryInfo, None),
    "create_and_register_allocator_v2": lambda: ort.create_and_register_allocator_v2("CPU", None, None, {}),
    "set_default_logger_callback": lambda: ort.set_default_logger_callback(callback, severity=1),
    "set_global_thread_pool_sizes": lambda: ort.set_global_thread_pool_sizes(1, 1),
    **{
        name: functools.partial(lambda name: getattr(bindings, name)(), name)
        for name in REFUSED
        if name.startswith(("get_all_op", "get_reg", "get_session_init", "pack_", "quantize_", "SessionObject"))
    },
    "KernelDef": lambda: bindings.opkernel.KernelDef(),
    "OpSchema": lambda: bindings.schemadef.OpSchema(),
}


def test_everything_that_the_page_calls_impossible_is_tried() -> None:
    assert ATTEMPTS.keys() == REFUSED.keys()


@pytest.mark.parametrize("name", ATTEMPTS)
def test_what_is_not_possible_is_refused_in_words(name: str) -> None:
    with pytest.raises(OptionError, match="through qnnbridge") as caught:
        ATTEMPTS[name]()
    error: Any = caught.value
    assert error.fix
    assert error.cause


def test_taking_back_a_log_callback_that_is_never_set_is_no_error() -> None:
    ort.set_default_logger_callback(None)
    ort.set_default_logger_callback(callback=None, severity=4)


def test_what_a_log_callback_is_refused_for_names_where_the_lines_are(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OptionError, match=r"set_default_logger_callback") as caught:
        ort.set_default_logger_callback(callback)
    (name,) = re.findall(r'getLogger\("(.+?)"\)', caught.value.fix or "")
    options = ort.SessionOptions()
    options.log_severity_level = 0
    with caplog.at_level(logging.DEBUG, logger=name):
        ort.InferenceSession(MUL, options, providers=["CPUExecutionProvider"])
        until(lambda: any("onnxruntime" in record.getMessage() for record in caplog.records))


def until(happened: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.01)
