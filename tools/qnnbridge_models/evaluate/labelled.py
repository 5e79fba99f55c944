"""Samples with what is expected of them: inputs, expected outputs and labels, out of .npz and .npy files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qnnbridge_models.quantize.samples import SUFFIXES, CalibrationInput, list_files, load
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools import feeds as readers
from qnnbridge_tools.arguments import InputFile

Arrays = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class LabelledSample:
    """One sample.

    Args:
        feeds: the inputs.
        expected: of outputs by name; empty if nothing is expected.
        arrays: everything in its files by name, for a metric.
    """

    feeds: Arrays
    expected: Arrays
    arrays: Arrays


def read_samples(
    sources: Sequence[Path], expected: Path | None, inputs: Sequence[CalibrationInput], outputs: Sequence[str]
) -> list[LabelledSample]:
    """All samples of files and folders.

    Args:
        expected: a folder with files of the same names, which hold outputs by name; an .npy file is for one output.

    Raises:
        OptionError: a file is missing, cannot be read, or does not fit the model.
    """
    if not sources:
        raise OptionError(
            "No inputs to evaluate with.",
            fix="--input FOLDER with .npz files, an array for each input by its name.",
        )
    if expected is not None and not expected.is_dir():
        raise OptionError(f"There is no folder {expected} with expected outputs.")
    names = {one.name for one in inputs}
    found = []
    for file in list_files(sources):
        samples, _ = load([file], inputs)
        extras = _extras(file, names, len(samples))
        if expected is not None:
            wanted = _expected_of(file, expected, outputs, len(samples))
            extras = [{**extra, **one} for extra, one in zip(extras, wanted, strict=True)]
        for feeds, extra in zip(samples, extras, strict=True):
            mine = {name: value for name, value in extra.items() if name in outputs}
            found.append(LabelledSample(feeds, mine, {**feeds, **extra}))
    return found


def _extras(file: Path, inputs: set[str], count: int) -> list[dict[str, Any]]:
    """What a file holds besides the inputs, for each of the samples in it."""
    if file.suffix.lower() != ".npz":
        return [{} for _ in range(count)]
    arrays = {feed.name: np.asarray(feed.value) for feed in readers.load([], file) if feed.name not in inputs}
    return _of_each(arrays, file, count)


def _expected_of(file: Path, folder: Path, outputs: Sequence[str], count: int) -> list[dict[str, Any]]:
    for suffix in SUFFIXES:
        path = folder / f"{file.stem}{suffix}"
        if not path.is_file():
            continue
        if suffix == ".npz":
            arrays = {feed.name: np.asarray(feed.value) for feed in readers.load([], path)}
        elif len(outputs) == 1:
            arrays = {outputs[0]: np.asarray(readers.load([InputFile(outputs[0], path)], None)[0].value)}
        else:
            raise OptionError(
                f"{path} holds one array, and the model has {len(outputs)} outputs: {', '.join(outputs)}.",
                fix="Save them as an .npz file with the outputs' names as keys.",
            )
        if not set(arrays) & set(outputs):
            raise OptionError(
                f"{path} has no output of the model: {', '.join(arrays) or 'nothing'}.",
                fix=f"The model's outputs are {', '.join(outputs)}.",
            )
        return _of_each(arrays, path, count)
    raise OptionError(
        f"{folder} has no expected outputs for {file.name}.", fix=f"Save them as {folder / file.stem}.npz."
    )


def _of_each(arrays: Mapping[str, Any], file: Path, count: int) -> list[dict[str, Any]]:
    """Stacked along axis 0, as the inputs are."""
    if count == 1:
        return [dict(arrays)]
    for name, value in arrays.items():
        if value.shape[:1] != (count,):
            raise OptionError(
                f'{file} holds {count} samples, and "{name}" has the shape {value.shape}.',
                fix="Stack the same number of everything along axis 0, or save a file for each sample.",
            )
    return [{name: value[number] for name, value in arrays.items()} for number in range(count)]
