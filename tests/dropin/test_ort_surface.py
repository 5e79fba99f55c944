"""All names of onnxruntime since release 1.24.2 exist with the same arguments, or raise an explained error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ort = pytest.importorskip("onnxruntime")

import qnnbridge.ort as ours  # noqa: E402
from qnnbridge.ort._errors import NotOffered  # noqa: E402
from tests.dropin import ort_table, ort_walk  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.mark.process
def test_no_name_of_any_recorded_release_is_missing() -> None:
    lacking = {v: ort_table.missing(walk["modules"], ort_table.ours()) for v, walk in ort_walk.recorded().items()}
    assert lacking == {version: [] for version in lacking}
    assert set(ort_table.SHOWN) <= set(lacking)


@pytest.mark.process
def test_no_name_of_the_installed_release_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.dropin.ort_walk"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    walk = json.loads(done.stdout)
    assert ort_table.missing(walk["modules"], ort_table.ours()) == []
    recorded = ort_walk.recorded().get(walk["version"])
    assert recorded is None or recorded == walk


@pytest.mark.process
def test_the_page_equals_the_recorded_interfaces() -> None:
    assert ort_table.PAGE.read_text(encoding="utf-8") == ort_table.page()


@pytest.mark.process
def test_a_name_that_onnxruntime_adds_changes_or_moves_is_detected() -> None:
    here = ort_table.ours()
    level = here["onnxruntime"]["GraphOptimizationLevel"]
    newer: dict[str, Any] = {
        "onnxruntime": {
            "brand_new_function": {"kind": "function", "module": "onnxruntime", "arguments": ["x"]},
            "get_device": {"kind": "function", "module": "onnxruntime.elsewhere", "arguments": []},
            "GraphOptimizationLevel": {**level, "enum": {**level["enum"], "ORT_ENABLE_MORE": 98}},
            "InferenceSession": {
                **here["onnxruntime"]["InferenceSession"],
                "members": {"run": ["output_names", "input_feed", "run_options=", "stream="], "walk": []},
            },
        },
        "onnxruntime.brand_new": {"x": {"kind": "value"}},
    }
    found = "\n".join(ort_table.missing(newer, here))
    for part in ("brand_new_function", "elsewhere", "ORT_ENABLE_MORE", "run takes", "lacks walk", "brand_new.x"):
        assert part in found, part
    assert len(found.splitlines()) == 6


def test_the_recorder_reads_arguments_of_python_functions_and_of_bindings() -> None:
    state = ort.capi.onnxruntime_pybind11_state
    assert ort_walk.arguments(state.set_default_logger_callback) == ["callback", "severity="]
    assert ort_walk.arguments(state.SessionOptions.add_initializer, bound=True) == ["_", "_"]
    assert ort_walk.arguments(ort.InferenceSession.run, bound=True) == [
        "output_names",
        "input_feed",
        "run_options=",
    ]
    assert ort_walk.arguments(lambda a, /, b, *c, d=1, **e: None) == ["_", "b", "*", "d=", "**"]


def test_every_name_in_all_exists() -> None:
    for name in ours.__all__:
        assert getattr(ours, name) is not None or name == "import_capi_exception", name
    assert set(ours.__all__) <= set(dir(ours))


@pytest.mark.parametrize("name", ["quantization", "no_such_name", "training"])
def test_a_missing_name_is_an_attribute_error_with_an_explanation(name: str) -> None:
    assert not hasattr(ours, name)
    with pytest.raises(NotOffered, match=r"not offered through qnnbridge\. "):
        getattr(ours, name)


# The bindings' enumerations differ from ours only in the class name within texts, and in the address of objects
# without a text.
_ENUMERATIONS = """
import sys, pickle, copy
if sys.argv[1:]: import qnnbridge.dropin
import onnxruntime.capi.onnxruntime_pybind11_state as state

def told(what, **names):
    try:
        return repr(eval(what, {**names, "pickle": pickle, "copy": copy}))
    except Exception as error:
        return type(error).__mro__[-3].__name__

for name in sorted(dir(state)):
    cls = getattr(state, name)
    if not hasattr(cls, "__members__"):
        continue
    print(name, list(cls.__members__), cls.__doc__)
    for member in cls.__members__.values():
        for what in QUESTIONS:
            print(what, told(what, cls=cls, m=member, n=int(member)))
"""
_QUESTIONS = [
    *("repr(m)", "str(m)", "format(m)", "m.name", "m.value", "type(m.value)", "int(m)", "m.__index__()", "bool(m)"),
    *(
        "type(cls.name)",
        "type(cls.value)",
        "list(cls)",
        "len(cls)",
        "cls['x']",
        "m in cls",
        "cls(n)",
        "str(cls(57))",
    ),
    *("cls('a')", "cls()", "cls(-1)", "cls(1.5)", "cls(True)", "cls(value=1)", "cls(2 ** 40)", "cls(n) is m"),
    *("m == n", "m != n", "n == m", "cls(n) == m", "m == 'a'", "m == None", "m < m", "m < n", "m >= n", "m + 1"),
    *("m | m", "n | m", "m & n", "m ^ 3", "~m", "hash(m) == hash(n)", "{m: 1}[cls(n)]", "isinstance(m, int)"),
    *("pickle.loads(pickle.dumps(m))", "copy.copy(m)", "copy.deepcopy(m) == m", "m.__getstate__()", "m.foo"),
    *("setattr(m, 'x', 1)", "cls.__members__ is cls.__members__", "getattr(cls, '__entries')", "cls.__module__"),
]


@pytest.mark.process
def test_enumerations_behave_as_those_of_the_bindings() -> None:
    source = _ENUMERATIONS.replace("QUESTIONS", repr(_QUESTIONS))
    theirs, here = (
        subprocess.run(
            [sys.executable, "-c", source, *arguments],
            env={**os.environ, "QNNBRIDGE_HOST_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for arguments in ([], ["ours"])
    )
    assert len(theirs) > 1000
    assert here == theirs
