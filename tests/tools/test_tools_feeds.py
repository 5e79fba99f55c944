"""Inputs from files, and generated inputs."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_host.numerics.sampling import full_shape, random_value
from qnnbridge_protocol.elements import LAYOUTS, ElementType
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_protocol.tensors import Typed
from qnnbridge_tools.arguments import InputFile, read_dimensions
from qnnbridge_tools.feeds import Feed, complete, load

X = NodeInfo("x", "tensor(float)", (2, 3))
Y = NodeInfo("y", "tensor(int64)", ("n",))


def test_arrays_are_read_from_files_and_keys_of_archives(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    np.savez(tmp_path / "b.npz", first=np.zeros(2), second=np.ones(2))
    np.savez(tmp_path / "c.npz", only=np.full(2, 7))
    one, two, three = load(
        [
            InputFile("x", tmp_path / "a.npy"),
            InputFile("y", tmp_path / "b.npz", "second"),
            InputFile("z", tmp_path / "c.npz"),
        ],
        None,
    )
    assert one.value.tolist() == [0, 1, 2]
    assert two.value.tolist() == [1, 1]
    assert two.source.endswith("b.npz:second")
    assert three.value.tolist() == [7, 7]


def test_an_archive_supplies_all_its_arrays_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", **{"x": np.zeros(2), "y:0": np.ones(2)})
    assert {feed.name: feed.value.tolist() for feed in load([], tmp_path / "all.npz")} == {
        "x": [0, 0],
        "y:0": [1, 1],
    }


def test_a_name_both_in_a_file_and_in_the_archive_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(1))
    np.savez(tmp_path / "all.npz", x=np.zeros(1))
    with pytest.raises(OptionError, match='"x" is given by --input'):
        load([InputFile("x", tmp_path / "a.npy")], tmp_path / "all.npz")


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([print], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "b.npz", x=np.array([print], dtype=object))
    for file in (InputFile("x", tmp_path / "a.npy"), InputFile("x", tmp_path / "b.npz", "x")):
        with pytest.raises(OptionError, match="cannot be read as a numpy array"):
            load([file], None)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x93NUMPY\x01\x00\xff\xff", b"PK\x03\x04 no archive"])
def test_a_file_that_is_not_an_array_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(OptionError, match="cannot be read as a numpy array") as refused:
        load([InputFile("x", path)], None)
    assert "allow_pickle" not in str(refused.value)  # the message of numpy for any file in another format


def test_a_header_that_promises_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(2))
    path.write_bytes(path.read_bytes().replace(b"(2,)", b"(9,)"))
    with pytest.raises(OptionError, match="cannot be read as a numpy array"):
        load([InputFile("x", path)], None)


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="There is no file"):
        load([InputFile("x", tmp_path / "none.npy")], None)
    with pytest.raises(OptionError, match="cannot be read"):
        load([InputFile("x", tmp_path)], None)


def test_an_archive_with_several_arrays_needs_a_key(tmp_path: Path) -> None:
    path = tmp_path / "b.npz"
    np.savez(path, first=np.zeros(1), second=np.zeros(1))
    with pytest.raises(OptionError, match="contains 2 arrays") as caught:
        load([InputFile("x", path)], None)
    assert ":KEY" in str(caught.value.fix)
    with pytest.raises(OptionError, match='does not contain an array "third"'):
        load([InputFile("x", path, "third")], None)


def test_inputs_without_a_file_are_generated_on_request() -> None:
    loaded = [Feed("x", np.zeros((2, 3), np.float32), "x.npy")]
    x, y = complete([X, Y], loaded, read_dimensions(["n=4"]), seed=3)
    assert x.source == "x.npy"
    assert y.source == "random, seed 3"
    assert y.value.shape == (4,)


def test_the_error_for_a_missing_input_names_both_alternatives() -> None:
    with pytest.raises(OptionError, match="No value for inputs x, y") as caught:
        complete([X, Y], [], Dimensions(), seed=None)
    assert "--input x=FILE.npy" in str(caught.value.fix)
    assert "--random" in str(caught.value.fix)


def test_raw_bits_are_converted_to_the_type_that_a_file_cannot_name() -> None:
    declared = [NodeInfo("b", "tensor(bfloat16)", ("n",)), NodeInfo("q", "tensor(int4)", (3,))]
    loaded = [Feed("b", np.zeros(5, np.uint16), "b.npy"), Feed("q", np.zeros(2, np.uint8), "q.npy")]
    b, q = complete(declared, loaded, Dimensions(), seed=None)
    assert isinstance(b.value, Typed)
    assert (b.value.element_type, b.value.shape) == (ElementType.BFLOAT16, (5,))
    assert isinstance(q.value, Typed)
    assert (q.value.element_type, q.value.shape) == (ElementType.INT4, (3,))


def test_numbers_where_raw_bits_are_required_are_refused() -> None:
    with pytest.raises(OptionError, match=r"is bfloat16, but b[.]npy contains float32") as caught:
        complete(
            [NodeInfo("b", "tensor(bfloat16)", (2,))],
            [Feed("b", np.zeros(2, np.float32), "b.npy")],
            Dimensions(),
            seed=None,
        )
    assert "uint16" in str(caught.value.fix)


# --- generated inputs -------------------------------------------------------------------------------------

FLOATS_OF_ML_DTYPES = [
    element
    for element in ElementType
    if not LAYOUTS[element].named and element.name.startswith(("FLOAT", "BFLOAT"))
]


def made(type_text: str, shape: tuple[int, ...] = (2, 50), seed: int = 0) -> Any:
    return random_value("x", type_text, shape, np.random.default_rng(seed))


@pytest.mark.parametrize("element", list(ElementType), ids=lambda element: element.name)
def test_every_element_type_can_be_generated_and_depends_only_on_the_seed(element: ElementType) -> None:
    first, again, other = (made(f"tensor({element.text})", seed=seed) for seed in (1, 1, 2))
    assert first.shape == (2, 50)
    if isinstance(first, Typed):
        assert first.element_type is element
        first, again, other = first.data, again.data, other.data
    assert first.dtype == LAYOUTS[element].storage
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("type_text", ["tensor(float)", "tensor(double)", "tensor(float16)"])
def test_floats_are_between_zero_and_one(type_text: str) -> None:
    value = made(type_text)
    assert value.min() >= 0
    assert value.max() <= 1
    assert value.std() > 0.1


@pytest.mark.parametrize("element", FLOATS_OF_ML_DTYPES, ids=lambda element: element.name)
def test_small_floats_are_between_zero_and_one(element: ElementType) -> None:
    pytest.importorskip("ml_dtypes")
    numbers = made(f"tensor({element.text})").numpy().astype(np.float64)
    assert numbers.min() >= 0
    assert 0 < numbers.max() <= 1


@pytest.mark.parametrize("type_text", ["tensor(int64)", "tensor(int32)", "tensor(uint16)"])
def test_wide_integers_are_zero_or_one_because_they_are_mostly_indices(type_text: str) -> None:
    assert set(made(type_text).ravel().tolist()) == {0, 1}


def test_bytes_use_their_whole_range() -> None:
    assert made("tensor(int8)", (10_000,)).min() == -128
    assert made("tensor(uint8)", (10_000,)).max() == 255


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_scalars_and_empty_tensors_can_be_made_up(shape: tuple[int, ...]) -> None:
    for type_text in ("tensor(float)", "tensor(string)", "tensor(int4)", "tensor(bfloat16)", "tensor(complex64)"):
        assert made(type_text, shape).shape == shape


@pytest.mark.parametrize("type_text", ["seq(tensor(float))", "map(int64,tensor(float))", "optional(tensor(float))"])
def test_an_input_that_is_not_a_tensor_is_refused_with_an_alternative(type_text: str) -> None:
    with pytest.raises(OptionError, match="cannot be generated") as caught:
        made(type_text)
    assert "InferenceSession" in str(caught.value.fix)


def test_a_shape_too_large_for_the_memory_is_refused() -> None:
    with pytest.raises(OptionError, match="does not fit in memory"):
        made("tensor(float)", (2**20, 2**20, 2**10))


def test_free_dimensions_are_set_from_the_command_line() -> None:
    assert full_shape("x", ["batch", 3, None], read_dimensions(["batch=2", "x:2=5"])) == (2, 3, 5)


def test_the_error_for_a_free_dimension_without_a_size_names_the_option() -> None:
    with pytest.raises(OptionError) as caught:
        full_shape("x", ["batch", 3, None, "batch", -1], read_dimensions([]))
    assert caught.value.fix == '--dim "batch=SIZE" --dim "x:2=SIZE" --dim "x:4=SIZE"'


def test_an_input_without_a_shape_needs_a_file() -> None:
    with pytest.raises(OptionError, match="no declared shape"):
        full_shape("x", None, read_dimensions([]))


def test_an_archive_of_many_arrays_is_read_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "many.npz", **{f"a{number}": np.full(1, number) for number in range(50)})
    opened: list[object] = []
    read = np.load
    monkeypatch.setattr(np, "load", lambda *given, **how: opened.append(given) or read(*given, **how))
    assert [feed.value.item() for feed in load([], tmp_path / "many.npz")] == list(range(50))
    assert len(opened) == 1


def test_a_file_in_an_archive_that_is_not_an_array_is_an_error(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("x.npy", b"hello")
    with pytest.raises(OptionError, match="cannot be read as a numpy array"):
        load([], tmp_path / "text.npz")
