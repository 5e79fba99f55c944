"""The kinds of objects of the host match `docs/dev/protocol.md`; damaged descriptions are refused."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("onnxruntime")

from tests.unit.test_protocol_page import bare, rows

from qnnbridge_host.create.replaced import CONTEXT_READ
from qnnbridge_host.engine import ort_objects
from qnnbridge_host.engine.ort_objects import LOG
from qnnbridge_host.engine.sessions import Sessions
from qnnbridge_host.request.in_flight import Request
from qnnbridge_host.serve.handlers import KINDS, HostObjects
from qnnbridge_protocol.errors import BridgeError

OURS = {name: load for name, load in KINDS.items() if not name.startswith("Genai")}


def test_the_page_lists_the_kinds_and_their_operations() -> None:
    listed = {bare(row[0]): re.findall(r"`(\w+)`", row[2]) for row in rows("Kinds of objects", "kind", "made from")}
    assert listed == {name: list(load().operations) for name, load in OURS.items()}
    assert all(load().name == name for name, load in OURS.items())


def test_the_page_lists_the_functions() -> None:
    functions = {bare(row[0]) for row in rows("Calls back", "function", "arguments", "values")}
    named = {ort_objects.INITIALIZER_LOCATION, ort_objects.WRITE, ort_objects.CONTEXT_WRITE}
    assert functions == named | {CONTEXT_READ, LOG}


@pytest.fixture(scope="module")
def objects(engine: Any) -> HostObjects:
    # The engine of all tests: a process registers QNN once.
    sessions = Sessions(lambda _phase: engine)
    sessions.start(lambda _phase: None)
    return HostObjects(sessions, KINDS)


numbers = itertools.count(1)
DAMAGED: tuple[Mapping[str, Any], ...] = (
    {},
    {"spec": 3},
    {"spec": {"providers": 3}},
    {"spec": {}, "embed": "yes", "flags": 0, "optimization": 0},
    {"spec": {"model_path": None}, "embed": True, "flags": "x", "optimization": 99},
    {"open": 3},
    {"open": {"positional": [[]], "named": {}}},
    {"package_root": 3},
    {"path": 3},
    {"device": {}},
    {"memory_info": {}},
    {"memory_info": {"name": "Cpu", "allocator_type": "x", "device_id": None, "mem_type": 0}},
)


# The argument that creates an object of each kind; unknown keys are ignored.
OWN_ARGUMENT = {
    "AdapterFormat": "path",
    "ModelCompiler": "spec",
    "ModelPackage": "open",
    "ModelPackageContext": "package_root",
    "ModelPackageOptions": "spec",
    "OrtSyncStream": "device",
    "SharedAllocator": "memory_info",
}
WITHOUT_ARGUMENTS = ("AdapterFormat", "BuildTools", "ModelPackage")


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("arguments", DAMAGED, ids=str)
def test_a_damaged_description_is_an_error_of_the_project(
    objects: HostObjects, kind: str, arguments: Mapping[str, Any]
) -> None:
    request = Request(next(numbers), {"op": "object.create", "kind": kind, "arguments": dict(arguments)}, ())
    concerned = OWN_ARGUMENT.get(kind) in arguments or kind not in WITHOUT_ARGUMENTS
    whole = arguments.get("spec") == {"model_path": None} and kind == "ModelPackageOptions"
    try:
        objects.create(request, lambda _phase: None)
        assert not concerned or whole
    except BridgeError:
        assert concerned
    finally:
        objects.close_all()
