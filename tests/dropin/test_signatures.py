"""Arguments are accepted, converted and refused as by the bindings of onnxruntime."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import onnxruntime as real
from onnxruntime.capi import onnxruntime_pybind11_state as real_bindings
from scripts.makers import signatures

import qnnbridge.ort as ort
from qnnbridge import _bindings
from qnnbridge.ort.capi import onnxruntime_pybind11_state as bindings

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        tuple(map(int, real.__version__.split(".")[:2])) < (1, 32), reason="the texts are those of onnxruntime 1.32"
    ),
]


def cpu(m: Any) -> Any:
    return m.OrtMemoryInfo("Cpu", m.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, m.OrtMemType.DEFAULT)


# Functions of the module ``onnxruntime`` and of its bindings.
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "a text as number": lambda m, _: m.set_seed("7"),
    "a float as number": lambda m, _: m.set_seed(7.0),
    "a number of 64 bits": lambda m, _: m.set_seed(2**63 - 1),
    "a number of 65 bits": lambda m, _: m.set_seed(2**63),
    "a number of 32 bits": lambda m, _: m.set_default_logger_verbosity(2**31 - 1),
    "a number of 33 bits": lambda m, _: m.set_default_logger_verbosity(2**31),
    "a negative number": lambda m, _: m.set_default_logger_verbosity(-1),
    "a number of numpy": lambda m, _: m.set_default_logger_severity(np.int8(2)),
    "a truth value as number": lambda m, _: m.set_default_logger_verbosity(False),
    "no number": lambda m, _: m.set_default_logger_severity(None),
    "too many arguments": lambda m, _: m.set_seed(1, 2),
    "too few arguments": lambda m, _: m.register_execution_provider_library("x"),
    "a name for an argument without one": lambda m, _: m.set_seed(seed=1),
    "an unknown name": lambda m, _: m.set_default_logger_callback(None, level=2),
    "positions and names": lambda m, _: m.set_global_thread_pool_sizes(1, inter_op_num_threads="2"),
    "a number as text": lambda m, _: m.unregister_execution_provider_library(3),
    "bytes as text": lambda m, _: m.unregister_execution_provider_library(b"none"),
    "half a character": lambda m, _: m.unregister_execution_provider_library(chr(0xD800)),
    "nothing for an object": lambda m, _: m.create_and_register_allocator(None, None),
    "options with a number": lambda m, _: m.create_and_register_allocator_v2("none", cpu(m), {"a": 1}, None),
    "a kind of memory as text": lambda m, _: m.OrtMemoryInfo("Cpu", "arena", 0, m.OrtMemType.DEFAULT),
    "memory of a device, short": lambda m, _: m.OrtMemoryInfo.create_v2("mine"),
    "three numbers for an arena": lambda m, _: m.OrtArenaCfg(1, 2, 3),
    "a text for an arena": lambda m, _: m.OrtArenaCfg("max_mem"),
    "a folder of none": lambda m, _: m.ModelPackage.open(None),
    "a number as truth value": lambda m, _: m.ModelPackage.open("none", 1),
    "a text as truth value": lambda m, _: m.ModelPackage.open("none", "yes"),
    "a method of a remote object": lambda m, _: m.ModelPackage().add_shared_asset(3, copy_in=False),
    "a method without its argument": lambda m, _: m.ModelPackage().set_layout(),
    "nothing for a text": lambda m, _: m.ModelPackage().set_metadata(None, None, None),
    "a constructor by a name": lambda m, _: m.ModelPackageContext(package_root=3),
    "a property": lambda _, c: setattr(c.AdapterFormat(), "model_version", "1"),
    "a function that is a number": lambda m, _: m.SessionOptions().set_ep_context_data_read_func(3, 5),
    "a size that is a text": lambda m, _: m.SessionOptions().set_ep_context_data_read_func(print, "5"),
    "a delegate that is a number": lambda m, _: m.SessionOptions().set_provider_selection_policy_delegate(3),
    "a compiler for a number": lambda _, c: c.ModelCompiler(3, "a", True),
    "devices that are texts": lambda _, c: c.get_model_compatibility_for_ep_devices(["a"], "b"),
}
_ADDRESS = re.compile(r"<\S+ object at 0x[0-9a-f]+>")
_SOURCE_POSITION = re.compile(r"^/\S+\.(?:cc|h):\d+ .* was false\. ")


def outcome(attempt: Callable[[], Any]) -> tuple[str, str]:
    try:
        attempt()
    except Exception as error:
        builtin = next(c for c in type(error).__mro__ if c.__module__ == "builtins")
        text = _ADDRESS.sub("<object>", _SOURCE_POSITION.sub("", str(error)))
        return builtin.__name__, text.replace(os.getcwd() + os.sep, "").strip()
    return "", ""


@pytest.fixture(autouse=True)
def settings_as_before() -> Any:
    yield
    for module in (real, ort):
        module.set_default_logger_severity(2)
        module.set_default_logger_verbosity(0)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_ends_as_with_the_bindings(name: str) -> None:
    ours = outcome(lambda: CALLS[name](ort, bindings))
    assert ours == outcome(lambda: CALLS[name](real, real_bindings))


def test_the_record_is_that_of_the_installed_release() -> None:
    assert signatures.recorded(real_bindings) == _bindings.SIGNATURES


def test_a_remote_class_has_all_methods_of_the_bindings() -> None:
    for name in ("ModelPackage", "ModelPackageContext"):
        theirs = {member for member in vars(getattr(real_bindings, name)) if not member.startswith("_")}
        assert theirs <= set(dir(getattr(ort, name)))
