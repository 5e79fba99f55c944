"""The names of the module onnxruntime: all there, the same arguments, or refused in words."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

ort = pytest.importorskip("onnxruntime")

import qnnbridge.ort as ours  # noqa: E402
from qnnbridge.ort._errors import NotOffered  # noqa: E402
from tests.dropin import ort_table  # noqa: E402


def test_the_page_names_everything_that_onnxruntime_has() -> None:
    if ort_table.PAGE.read_text(encoding="utf-8").find(f"`onnxruntime` {ort.__version__} ") < 0:
        ort_table.page(ort, ours)  # another version: at least every name is decided about
        return
    assert ort_table.PAGE.read_text(encoding="utf-8") == ort_table.page(ort, ours)


def test_a_name_that_onnxruntime_gains_is_noticed() -> None:
    class Newer:
        __version__ = "99"

    newer: Any = Newer()
    newer.brand_new_function = len
    with pytest.raises(LookupError, match="brand_new_function"):
        ort_table.page(newer, ours)


def test_everything_in_all_is_there() -> None:
    for name in ours.__all__:
        assert getattr(ours, name) is not None, name
    assert set(ours.__all__) <= set(dir(ours))


# The other classes are made by a session or by factories, never by an application itself.
PYTHON_METHODS = [
    (cls, name)
    for cls in ("InferenceSession", "IOBinding", "OrtValue", "SparseTensor", "ModelCompiler")
    for name, method in inspect.getmembers(getattr(ort, cls), inspect.isroutine)
    if not inspect.isbuiltin(method)
    and (not name.startswith("_") or (name == "__init__" and cls in ("InferenceSession", "ModelCompiler")))
]


@pytest.mark.parametrize(("cls", "name"), PYTHON_METHODS, ids=lambda value: str(value))
def test_methods_take_the_arguments_of_onnxruntime(cls: str, name: str) -> None:
    theirs = _arguments(getattr(getattr(ort, cls), name))
    here = _arguments(getattr(getattr(ours, cls), name))
    for (their_name, their_default), (our_name, our_default) in zip(theirs, here, strict=False):
        assert our_name == their_name
        assert _same(our_default, their_default), (our_name, our_default, their_default)
    assert len(here) >= len(theirs), f"{cls}.{name} lacks {[n for n, _ in theirs[len(here) :]]}"


def _arguments(method: Any) -> list[tuple[str, Any]]:
    parameters = list(inspect.signature(method).parameters.values())
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [(p.name, p.default) for p in parameters if p.kind in kinds]


def _same(one: Any, other: Any) -> bool:
    return one == other or (hasattr(other, "value") and int(one) == int(other.value)) or int(one) == int(other)


@pytest.mark.parametrize("name", ["quantization", "no_such_name", "get_registered_ep_kernel_defs"])
def test_a_missing_name_is_an_attribute_error_with_words(name: str) -> None:
    assert not hasattr(ours, name)
    with pytest.raises(NotOffered, match=r"not offered through qnnbridge\. "):
        getattr(ours, name)


def test_inner_modules_have_what_applications_import() -> None:
    from qnnbridge.ort.capi import _pybind_state, onnxruntime_inference_collection, onnxruntime_pybind11_state

    theirs = ort.capi.onnxruntime_pybind11_state
    classes = [
        name for name, value in vars(theirs).items() if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert len(classes) == 15
    for name in classes:
        assert issubclass(getattr(onnxruntime_pybind11_state, name), Exception)
        assert getattr(_pybind_state, name) is getattr(onnxruntime_pybind11_state, name)
    assert onnxruntime_inference_collection.InferenceSession is ours.InferenceSession


def test_enumerations_have_the_numbers_of_onnxruntime() -> None:
    for name in dir(ort):
        theirs = getattr(ort, name)
        if not hasattr(theirs, "__members__"):
            continue
        here = getattr(ours, name)
        assert {n: int(m) for n, m in here.__members__.items()} == {
            n: int(getattr(m, "value", m)) for n, m in theirs.__members__.items()
        }, name
