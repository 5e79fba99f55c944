"""Calibration samples: the mapping of files to samples, and messages about files that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from qnnbridge_models.quantize.samples import load, shapes_in
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.specs import NodeInfo

IMAGE = NodeInfo("x", "tensor(float)", (1, 3, 4))
STATE = NodeInfo("state", "tensor(int64)", (2,))
SCALAR = NodeInfo("on", "tensor(bool)", ())


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return np.arange(np.prod(shape), dtype=np.int64).reshape(shape).astype(dtype)


def test_each_archive_in_a_folder_is_a_sample_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        np.savez(
            tmp_path / f"s{number}.npz", x=np.full((1, 3, 4), number, np.float32), state=array(2, dtype=np.int64)
        )
    (tmp_path / "readme.txt").write_text("not a sample")
    samples, notes = load([tmp_path], [IMAGE, STATE])
    assert [sample["x"].flat[0] for sample in samples] == [1, 9, 10]
    assert notes == []


@pytest.mark.parametrize(
    ("shape", "count"),
    [((1, 3, 4), 1), ((3, 4), 1), ((5, 3, 4), 5), ((5, 1, 3, 4), 5), ((1, 1, 3, 4), 1)],
)
def test_stacked_samples_and_a_single_sample_without_its_batch_are_accepted(
    shape: tuple[int, ...], count: int, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", array(*shape))
    samples, _ = load([tmp_path / "x.npy"], [IMAGE])
    assert len(samples) == count
    assert all(sample["x"].shape == (1, 3, 4) for sample in samples)
    assert np.array_equal(np.concatenate([sample["x"] for sample in samples]).ravel(), array(*shape).ravel())


def test_stacks_in_an_archive_are_split_together(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "s.npz", x=array(4, 3, 4), state=array(4, 2, dtype=np.int64), on=np.array([1, 0, 1, 0], bool)
    )
    samples, _ = load([tmp_path / "s.npz"], [IMAGE, STATE, SCALAR])
    assert len(samples) == 4
    assert [bool(sample["on"]) for sample in samples] == [True, False, True, False]
    assert samples[3]["on"].shape == ()
    assert isinstance(samples[3]["on"], np.ndarray)


def test_a_scalar_stays_a_scalar(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", on=np.array(True))
    samples, _ = load([tmp_path], [SCALAR])
    assert samples[0]["on"].shape == ()


def test_arrays_with_another_memory_order_have_the_same_values(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.asfortranarray(array(1, 3, 4)).astype(">f4"))
    samples, _ = load([tmp_path], [IMAGE])
    assert samples[0]["x"].dtype.isnative
    assert np.array_equal(samples[0]["x"], array(1, 3, 4))


def test_arrays_that_are_not_an_input_are_reported_and_not_used(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=array(1, 3, 4), label=np.array(3))
    samples, notes = load([tmp_path], [IMAGE])
    assert list(samples[0]) == ["x"]
    assert "label" in notes[0]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"X": array(1, 3, 4)}, ('no array "x"', "The file has X")),
        ({"x": array(1, 3, 4, dtype=np.float64)}, ('input "x" is float64', "expects float32")),
        ({"x": array(1, 3, 4, dtype=np.uint8)}, ('input "x" is uint8', "astype")),
        ({"x": array(1, 3, 5)}, ("shape 1x3x5", "expects 1x3x4")),
        ({"x": array(2, 2, 1, 3, 4)}, ("shape 2x2x1x3x4", "shape along axis 0")),
        ({"x": array(1, 3, 4) * np.float32(np.nan)}, ("NaN", "Remove the samples")),
        ({"x": array(0, 3, 4)}, ("no sample", "50 to 200")),
    ],
    ids=["name", "dtype", "pixels", "shape", "rank", "nan", "empty"],
)
def test_the_error_for_a_sample_that_does_not_fit_names_file_and_input(
    arrays: dict[str, Any], words: tuple[str, str], tmp_path: Path
) -> None:
    np.savez(tmp_path / "sample7.npz", **arrays)
    with pytest.raises(OptionError) as caught:
        load([tmp_path], [IMAGE])
    for word in words:
        assert word in str(caught.value)
    if words[0] != "no sample":
        assert "sample7.npz" in caught.value.message


def test_different_numbers_of_stacked_samples_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=array(4, 3, 4), state=array(3, 2, dtype=np.int64))
    with pytest.raises(OptionError, match="different numbers of samples: 4 of x, 3 of state"):
        load([tmp_path], [IMAGE, STATE])


def test_one_array_is_not_used_for_two_inputs(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array(1, 3, 4))
    with pytest.raises(OptionError, match="contains one array, but the model has 2 inputs: x, state"):
        load([tmp_path], [IMAGE, STATE])


def test_the_error_for_unreadable_files_names_them(tmp_path: Path) -> None:
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(OptionError, match=r"cut\.npz"):
        load([tmp_path], [IMAGE])
    np.save(tmp_path / "cut.npz", np.array([{"code": "runs when unpickled"}], dtype=object), allow_pickle=True)
    (tmp_path / "cut.npz").unlink()
    (tmp_path / "cut.npz.npy").rename(tmp_path / "pickled.npy")
    with pytest.raises(OptionError, match=r"pickled\.npy"):
        load([tmp_path], [IMAGE])


def test_the_error_for_folders_without_samples_and_missing_paths_names_them(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"")
    with pytest.raises(OptionError, match=r"contains no \.npz or \.npy files"):
        load([tmp_path], [IMAGE])
    with pytest.raises(OptionError, match=r"calibration file or folder .* does not exist"):
        load([tmp_path / "none"], [IMAGE])
    with pytest.raises(OptionError, match="neither a folder nor"):
        load([tmp_path / "image.png"], [IMAGE])


def test_a_large_data_set_is_not_kept_in_memory(tmp_path: Path) -> None:
    for number in range(5):
        np.savez(tmp_path / f"{number}.npz", x=array(1, 3, 4))
    samples, _ = load([tmp_path], [IMAGE])
    first = samples[0]["x"]
    assert samples[0]["x"] is first, "the last file is kept"
    assert samples[4]["x"] is not None
    assert samples[0]["x"] is not first


def test_shapes_for_suggestions_never_fail(tmp_path: Path) -> None:
    assert shapes_in([tmp_path], ["x"]) == {}
    np.savez(tmp_path / "s.npz", y=array(3))
    assert shapes_in([tmp_path], ["x"]) == {}
    assert shapes_in([tmp_path], ["y"]) == {"y": (3,)}


def test_strings_of_any_length_and_arrays_of_any_rank_are_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", words=np.array(["ab", "long one"]), free=array(3, 4))
    (sample,), _ = load(
        [tmp_path / "s.npz"],
        [NodeInfo("words", "tensor(string)", (2,)), NodeInfo("free", "tensor(float)", None)],
    )
    assert sample["words"].dtype == object
    assert sample["words"].tolist() == ["ab", "long one"]
    assert np.array_equal(sample["free"], array(3, 4))


@pytest.mark.parametrize("kind", ["seq(tensor(float))", "tensor(bfloat16)", "sparse_tensor(float)"])
def test_the_error_for_a_value_that_sample_files_cannot_hold_names_it(kind: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=array(2))
    with pytest.raises(OptionError, match=r"cannot contain"):
        load([tmp_path / "s.npz"], [NodeInfo("x", kind, (2,))])


def test_a_model_without_inputs_has_no_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=array(2))
    with pytest.raises(OptionError, match="no input"):
        load([tmp_path / "s.npz"], [])
