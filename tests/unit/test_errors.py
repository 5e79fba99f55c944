"""The error classes: stable codes, transfer over the wire, and inheritance from onnxruntime's errors."""

from __future__ import annotations

import builtins
import inspect
import pickle
import re
import subprocess
import sys
import types

import msgpack
import pytest

from qnnbridge import errors as public
from qnnbridge_protocol import errors

CLASSES = sorted(
    (cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.BridgeError)),
    key=lambda cls: cls.__name__,
)
ORT_MODULE = "onnxruntime.capi.onnxruntime_pybind11_state"

every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


def full(cls: type[errors.BridgeError]) -> errors.BridgeError:
    return cls(
        "It broke.",
        cause="A cable.",
        fix="Plug it in.",
        evidence=["line 1", "zeile ü"],
        details={"exit_code": -1073741819, "names": ["a"], "nested": {"x": 1.5}, "none": None},
    )


def assert_same(left: errors.BridgeError, right: errors.BridgeError) -> None:
    assert type(left).__name__ == type(right).__name__
    assert left.to_wire() == right.to_wire()
    assert str(left) == str(right)
    assert left.retry == right.retry


def test_every_code_belongs_to_one_class() -> None:
    codes = [cls.code for cls in CLASSES]
    assert len(set(codes)) == len(codes)
    assert dict(errors.BY_CODE) == {cls.code: cls for cls in CLASSES}


@every_class
def test_an_error_is_transferred_completely(cls: type[errors.BridgeError]) -> None:
    error = full(cls)
    wire = msgpack.unpackb(msgpack.packb(error.to_wire()), strict_map_key=False)
    arrived = errors.from_wire(wire)
    assert type(arrived) is cls
    assert_same(arrived, error)
    assert arrived.evidence == ("line 1", "zeile ü")


@every_class
def test_an_error_with_only_a_message_is_transferred(cls: type[errors.BridgeError]) -> None:
    arrived = errors.from_wire(cls("Only this.").to_wire())
    assert type(arrived) is cls
    assert (arrived.cause, arrived.fix, arrived.evidence, arrived.details) == (None, None, (), {})
    assert str(arrived) == "Only this."


@every_class
def test_an_error_can_be_pickled(cls: type[errors.BridgeError]) -> None:
    error = full(cls)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert_same(pickle.loads(pickle.dumps(error, protocol)), error)


@every_class
def test_the_text_contains_cause_evidence_and_fix(cls: type[errors.BridgeError]) -> None:
    assert str(full(cls)).splitlines() == [
        "It broke.",
        "  Cause: A cable.",
        "  Evidence: line 1",
        "  Evidence: zeile ü",
        "  Fix: Plug it in.",
    ]


def test_an_unknown_code_of_a_newer_peer_keeps_all_its_fields() -> None:
    wire = {**full(errors.Fail).to_wire(), "code": "future.Thing", "something": "new"}
    error = errors.from_wire(wire)
    assert type(error) is errors.BridgeError
    assert error.details["code"] == "future.Thing"
    assert (error.message, error.cause, error.fix) == ("It broke.", "A cable.", "Plug it in.")
    assert errors.from_wire(error.to_wire()).details["code"] == "future.Thing"


@pytest.mark.parametrize(
    "wire",
    [
        {},
        {"code": 7, "message": None, "cause": 3, "evidence": "text", "details": [1]},
        {"code": "ort.Fail", "evidence": [1, None], "details": None},
    ],
)
def test_a_malformed_error_is_still_an_error(wire: dict[str, object]) -> None:
    error = errors.from_wire(wire)
    assert isinstance(error, errors.BridgeError)
    str(error)


def test_the_tree_in_the_docstring_equals_the_tree_of_classes() -> None:
    """Every class is drawn once, below its base."""
    drawn: dict[str, str | None] = {}
    stack: list[tuple[int, str]] = []
    block = inspect.getdoc(errors)
    assert block is not None
    picture = block.split("::\n", 1)[1].split("\nAn error is sent", 1)[0]
    for line in picture.splitlines():
        match = re.match(r"^([ │├└─]*)([A-Z]\w+(?:, *[A-Z]\w+)*),?(?:\s{2,}.*)?$", line)
        if match is None:
            assert not line.strip(" │"), f"not understood: {line!r}"
            continue
        # The second line of a list of names continues the first one, without a branch.
        depth = len(match.group(1)) if "─" in match.group(1) or not stack else stack[-1][0]
        while stack and stack[-1][0] >= depth:
            stack.pop()
        for name in match.group(2).split(","):
            assert name.strip() not in drawn
            drawn[name.strip()] = stack[-1][1] if stack else None
        stack.append((depth, match.group(2).split(",")[0]))
    # Built-in base classes are written, not drawn.
    actual = {
        cls.__name__: next((b.__name__ for b in cls.__bases__ if issubclass(b, errors.BridgeError)), None)
        for cls in CLASSES
    }
    assert drawn == actual


def test_the_public_module_exports_every_class_and_nothing_else() -> None:
    names = {cls.__name__ for cls in CLASSES}
    assert set(public.__all__) == names | {"as_onnxruntime"}
    assert all(getattr(public, name) is getattr(errors, name) for name in names)


def test_remote_python_errors_are_instances_of_their_builtins_and_keep_their_text() -> None:
    for cls in CLASSES:
        if cls.__name__.startswith("Remote") and cls is not errors.RemoteError:
            builtin = getattr(builtins, cls.__name__.removeprefix("Remote"))
            error = full(cls)
            assert isinstance(error, builtin)
            assert str(error).startswith("It broke.\n")
            assert error.code == f"py.{builtin.__name__}"


def test_deadline_errors_are_timeouts_and_option_errors_are_value_errors() -> None:
    late = errors.DeadlineExceeded("Late.", details={"state": "stopped"})
    assert isinstance(late, TimeoutError)
    assert late.state == "stopped"
    assert isinstance(errors.OptionError("No."), ValueError)


@pytest.mark.process
def test_the_error_modules_import_nothing_heavy() -> None:
    """Error modules must work in a half-broken installation, where numpy or msgpack cannot be imported."""
    script = (
        "import sys; sys.modules['numpy'] = sys.modules['msgpack'] = None; "
        "import qnnbridge_protocol.errors as e; raise SystemExit(e.Fail('x').to_wire()['message'] != 'x')"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


# --- comparison with onnxruntime -------------------------------------------------------------------------


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A replacement of onnxruntime's module: its error classes by name, created as pybind11 creates them."""
    module = types.ModuleType(ORT_MODULE)
    for name in errors.ORT_ERRORS:
        setattr(module, name, type(name, (Exception,), {"__module__": ORT_MODULE}))
    monkeypatch.setitem(sys.modules, ORT_MODULE, module)
    return module


def test_without_onnxruntime_the_error_is_returned_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, ORT_MODULE, raising=False)
    error = errors.Fail("x")
    assert public.as_onnxruntime(error) is error
    assert ORT_MODULE not in sys.modules


@pytest.mark.parametrize("name", errors.ORT_ERRORS)
def test_an_error_is_also_an_instance_of_the_onnxruntime_class_if_that_is_imported(
    name: str, stand_in: types.ModuleType
) -> None:
    error = full(errors.ORT_ERRORS[name])
    twin = public.as_onnxruntime(error)
    assert isinstance(twin, errors.ORT_ERRORS[name])
    assert isinstance(twin, getattr(stand_in, name))
    assert_same(twin, error)
    assert twin.args == error.args
    assert type(twin) is type(public.as_onnxruntime(full(errors.ORT_ERRORS[name]))), "the class is made once"
    assert public.as_onnxruntime(twin) is twin
    back = pickle.loads(pickle.dumps(twin))
    assert type(back) is errors.ORT_ERRORS[name]
    assert_same(back, error)


def test_errors_that_onnxruntime_does_not_have_are_unchanged(stand_in: types.ModuleType) -> None:
    for cls in CLASSES:
        if cls.__name__ not in errors.ORT_ERRORS:
            error = cls("x")
            assert public.as_onnxruntime(error) is error


def test_an_older_onnxruntime_without_the_class_changes_nothing(stand_in: types.ModuleType) -> None:
    del stand_in.DeviceReset
    error = errors.DeviceReset("x")
    assert public.as_onnxruntime(error) is error


def test_traceback_cause_and_own_attributes_are_kept(stand_in: types.ModuleType) -> None:
    def fail() -> None:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            error = full(errors.EPFail)
            error.retry = "safe"
            raise error from inner

    with pytest.raises(errors.EPFail) as caught:
        fail()
    twin = public.as_onnxruntime(caught.value)
    assert isinstance(twin.__cause__, KeyError)
    assert twin.__suppress_context__
    assert twin.__traceback__ is caught.value.__traceback__ is not None
    assert twin.retry == "safe"


def test_except_clauses_for_the_real_onnxruntime_catch_the_error() -> None:
    pytest.importorskip("onnxruntime")
    module = sys.modules[ORT_MODULE]
    for name, cls in errors.ORT_ERRORS.items():
        theirs = getattr(module, name)
        with pytest.raises(theirs, match="It broke") as caught:
            raise public.as_onnxruntime(full(cls))
        assert isinstance(caught.value, cls)
        assert_same(pickle.loads(pickle.dumps(caught.value)), full(cls))


def test_the_table_has_every_exception_class_of_the_real_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    theirs = {
        name
        for name, cls in vars(sys.modules[ORT_MODULE]).items()
        if isinstance(cls, type) and issubclass(cls, Exception)
    }
    assert theirs == set(errors.ORT_ERRORS)


def test_retry_pointless_survives_pickling_of_a_crash_error() -> None:
    error = errors.HostCrashed("It died.")
    error.retry = "pointless"
    assert pickle.loads(pickle.dumps(error)).retry == error.copy().retry == "pointless"


def test_the_retry_field_is_transferred_if_it_differs_from_the_default_of_the_code() -> None:
    """Through a daemon, an application gets the crash of the NPU host only by the wire."""
    error = errors.HostCrashed("It died.")
    assert "retry" not in error.to_wire()
    error.retry = "pointless"
    assert errors.from_wire(error.to_wire()).retry == "pointless"
    for newer in ("in-an-hour", 3, None):
        assert errors.from_wire({**error.to_wire(), "retry": newer}).retry == errors.HostCrashed.retry
