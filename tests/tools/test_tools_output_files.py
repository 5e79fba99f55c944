"""Outputs of `qnnbridge run`: files, and summaries of tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import needs

from qnnbridge_protocol.elements import ElementType
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.tensors import Sparse, Typed
from qnnbridge_tools.run_once import MAX_NAME_LENGTH, TensorSummary, safe_names, summarize, write


def test_tensors_are_written_bit_for_bit(tmp_path: Path) -> None:
    value = np.array([[1.5, np.nan], [-0.0, np.inf]], dtype=np.float32)
    files = write({"y": value}, tmp_path)
    assert files == {"y": tmp_path / "y.npy"}
    assert np.load(files["y"], allow_pickle=False).tobytes() == value.tobytes()


def test_strings_are_written_so_that_they_can_be_read_without_pickle(tmp_path: Path) -> None:
    files = write({"s": np.array(["häßlich", ""], dtype=object)}, tmp_path)
    assert np.load(files["s"], allow_pickle=False).tolist() == ["häßlich", ""]


def test_types_that_a_file_cannot_name_are_written_as_raw_bits(tmp_path: Path) -> None:
    value = Typed(np.array([0x3F80, 0x4000], np.uint16), ElementType.BFLOAT16, (2,))
    files = write({"b": value}, tmp_path)
    assert np.load(files["b"], allow_pickle=False).tolist() == [0x3F80, 0x4000]


def test_sparse_tensors_are_written_with_their_indices(tmp_path: Path) -> None:
    value = Sparse(np.array([5.0], np.float32), (3, 3), "coo", (np.array([4], np.int64),))
    files = write({"s": value}, tmp_path)
    with np.load(files["s"], allow_pickle=False) as read:
        assert {name: read[name].tolist() for name in read.files} == {
            "values": [5.0],
            "dense_shape": [3, 3],
            "indices_0": [4],
        }


def test_sequences_and_maps_are_written_as_json(tmp_path: Path) -> None:
    value: list[Any] = [{0: np.float32(0.25), 1: 0.75}, {0: float("nan")}]
    files = write({"p": value, "e": None}, tmp_path)
    assert json.loads(files["p"].read_text()) == [[[0, 0.25], [1, 0.75]], [[0, "nan"]]]
    assert json.loads(files["e"].read_text()) is None


def test_files_are_replaced_and_no_temporary_file_is_left(tmp_path: Path) -> None:
    write({"y": np.zeros(1)}, tmp_path)
    write({"y": np.ones(1)}, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["y.npy"]
    assert np.load(tmp_path / "y.npy").tolist() == [1.0]


def test_a_file_that_cannot_be_written_leaves_no_partial_file(tmp_path: Path) -> None:
    (tmp_path / "y.npy").mkdir()
    with pytest.raises(OptionError, match="is a folder"):
        write({"y": np.zeros(1)}, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["y.npy"]


@needs.posix
def test_a_link_in_the_folder_is_followed_and_kept(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "y.npy").symlink_to(precious)
    write({"y": np.zeros(1)}, folder)
    assert np.array_equal(np.load(precious), np.zeros(1))
    assert (folder / "y.npy").is_symlink()


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("probs", "probs"),
        ("save_infer_model/scale_0.tmp_1", "save_infer_model_scale_0.tmp_1"),
        ("../../etc/passwd", "_.._etc_passwd"),
        ("..", "output"),
        ("", "output"),
        ("CON", "_CON"),
        ("nul.txt", "_nul.txt"),
        ("com1", "_com1"),
        ("console", "console"),
        ("C:\\x", "C__x"),
        ("Ausgänge", "Ausg_nge"),
    ],
)
def test_file_names_are_made_from_output_names(name: str, stem: str) -> None:
    assert safe_names([name]) == [stem]


def test_names_that_differ_only_in_case_or_in_unsafe_letters_get_different_files() -> None:
    assert safe_names(["a/b", "a_b", "A_B", "a_b-2"]) == ["a_b", "a_b-2", "A_B-3", "a_b-2-2"]


@given(st.lists(st.text(max_size=200), max_size=6))
def test_no_name_leaves_the_folder_or_collides_with_another(names: list[str]) -> None:
    stems = safe_names(names)
    assert len({stem.lower() for stem in stems}) == len(names)
    for stem in stems:
        assert Path(stem).name == stem
        assert stem.isascii()
        assert not stem.startswith(".")
        assert len(stem) <= MAX_NAME_LENGTH + 8


def test_minimum_maximum_and_mean_cover_the_finite_elements() -> None:
    value = np.array([1, 2, np.nan, 6, -np.inf], dtype=np.float32)
    assert summarize(value) == TensorSummary("float32", (5,), 1.0, 6.0, 3.0, not_finite=2)
    assert summarize(value).numbers_text() == ("1", "6", "3 (2 NaN or infinite)")


def test_the_mean_of_many_float16_values_does_not_overflow() -> None:
    assert summarize(np.full(10_000, 60_000, np.float16)).mean == pytest.approx(60_000)


def test_large_integers_keep_their_exact_bounds() -> None:
    told = summarize(np.array([-(2**62), 2**62], np.int64))
    assert (told.min, told.max) == (-(2.0**62), 2.0**62)


@pytest.mark.parametrize(
    ("value", "kind", "shape"),
    [
        (np.zeros((2, 0), np.float32), "float32", (2, 0)),
        (np.array(["a"], dtype=object), "string", (1,)),
        (np.full(2, np.nan), "float64", (2,)),
        ([np.zeros(1)], "sequence of 1", None),
        ({1: 2.0}, "map of 1", None),
        (None, "empty optional", None),
        (Sparse(np.zeros(0, np.float32), (2, 2), "coo", (np.zeros(0, np.int64),)), "sparse coo", (2, 2)),
    ],
)
def test_only_kind_and_shape_are_reported_if_there_are_no_numbers(
    value: object, kind: str, shape: tuple[int, ...] | None
) -> None:
    told = summarize(value)
    assert (told.dtype, told.shape, told.min, told.mean) == (kind, shape, None, None)


def test_types_beyond_numpy_are_reported_by_their_onnx_names() -> None:
    pytest.importorskip("ml_dtypes")
    one_and_two = Typed(np.array([0x3F80, 0x4000], np.uint16), ElementType.BFLOAT16, (2,))
    assert summarize(one_and_two) == TensorSummary("bfloat16", (2,), 1.0, 2.0, 1.5)
    minus_one_and_seven = Typed(np.array([0x7F], np.uint8), ElementType.INT4, (2,))
    assert summarize(minus_one_and_seven) == TensorSummary("int4", (2,), -1.0, 7.0, 3.0)


def test_complex_numbers_are_summarised_by_their_magnitude() -> None:
    assert summarize(np.array([3 + 4j], np.complex64)) == TensorSummary("complex64", (1,), 5.0, 5.0, 5.0)
