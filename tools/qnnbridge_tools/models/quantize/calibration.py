"""Calibration samples from .npz and .npy files, checked before any work begins.

One sample is the value of every input. An .npz file has the inputs' names as keys; an .npy file is for a model with
one input. Arrays with one axis more than the model's, or with a larger batch than the model's 1, are several
samples, stacked. Files are read once to be checked and again when they are used: large sets need not fit in memory.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qnnbridge_protocol import elements
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools import feeds as readers
from qnnbridge_tools.arguments import InputFile
from qnnbridge_tools.models.shared.sampling import Feeds

SUFFIXES = (".npz", ".npy")
MAX_NAMES_SHOWN = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """An input of the model. shape: None for a free dimension."""

    name: str
    type: str
    shape: tuple[int | None, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        element = elements.from_ort_type(self.type).element
        assert element is not None
        return elements.numpy_dtype(element)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a sample is: in which file, and as which of its stacked samples."""

    file: Path
    number: int


class FileSamples:
    """A sequence of samples, read when they are used; the last file is kept. One thread at a time."""

    def __init__(self, places: Sequence[Place], declared: Sequence[Declared]) -> None:
        self._places = list(places)
        self._declared = list(declared)
        self._read: tuple[Path, list[Feeds]] | None = None

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Feeds]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> Feeds:
        place = self._places[number]
        if self._read is None or self._read[0] != place.file:
            self._read = (place.file, _samples_of(place.file, self._declared))
        return self._read[1][place.number]


def load(sources: Iterable[Path], declared: Sequence[Declared]) -> tuple[FileSamples, list[str]]:
    """All samples of files and folders, in the order of their names; and what is worth a warning."""
    places: list[Place] = []
    ignored: set[str] = set()
    for file in list_files(sources):
        samples = _samples_of(file, declared, ignored)
        places += [Place(file, number) for number in range(len(samples))]
    if not places:
        raise OptionError("The calibration files hold no sample.", fix="Give at least one; 50 to 200 are usual.")
    notes = [f"Not an input of the model, so not used: {', '.join(sorted(ignored)[:MAX_NAMES_SHOWN])}."]
    return FileSamples(places, declared), notes if ignored else []


def list_files(sources: Iterable[Path]) -> list[Path]:
    """The files that hold samples, those of a folder in natural order (2 before 10)."""
    files: list[Path] = []
    for source in sources:
        if source.is_dir():
            inside = [path for path in source.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()]
            if not inside:
                raise OptionError(
                    f"The folder {source} holds no .npz or .npy file.",
                    fix="Save each sample there: numpy.savez(FILE, input_name=array, ...).",
                )
            files += sorted(inside, key=_natural)
        elif not source.exists():
            raise OptionError(f"There is no calibration file or folder {source}.")
        elif source.suffix.lower() not in SUFFIXES:
            raise OptionError(f"{source} is neither a folder nor an .npz or .npy file.")
        else:
            files.append(source)
    return files


def shapes_in(sources: Iterable[Path], names: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
    """The shapes of the first file's arrays, to suggest sizes for free dimensions. Empty if it cannot be read."""
    try:
        arrays = _arrays_of(list_files(sources)[0], names, set())
    except (OptionError, IndexError):
        return {}
    return {name: array.shape for name, array in arrays.items()}


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", path.name)]


def _arrays_of(file: Path, names: Sequence[str], ignored: set[str]) -> dict[str, npt.NDArray[Any]]:
    if file.suffix.lower() == ".npy":
        if len(names) != 1:
            raise OptionError(
                f"{file} holds one array, and the model has {len(names)} inputs: {_listed(names)}.",
                fix="Save samples as .npz files with the inputs' names as keys.",
            )
        return {names[0]: np.asarray(readers.load([InputFile(names[0], file)], None)[0].value)}
    arrays = {feed.name: np.asarray(feed.value) for feed in readers.load([], file)}
    missing = [name for name in names if name not in arrays]
    if missing:
        raise OptionError(
            f'{file} has no array "{missing[0]}", which the model needs as input.',
            cause=f"It has {_listed(list(arrays)) or 'none'}; the model's inputs are {_listed(names)}.",
            fix="Save it with the inputs' names as keys: numpy.savez(FILE, **{"
            + ", ".join(f'"{name}": ...' for name in names[:MAX_NAMES_SHOWN])
            + "}).",
        )
    ignored |= arrays.keys() - set(names)
    return {name: arrays[name] for name in names}


def _samples_of(file: Path, declared: Sequence[Declared], ignored: set[str] | None = None) -> list[Feeds]:
    arrays = _arrays_of(file, [node.name for node in declared], set() if ignored is None else ignored)
    stacks = {node.name: _stack(arrays[node.name], node, file) for node in declared}
    counts = {name: len(stack) for name, stack in stacks.items()}
    if len(set(counts.values())) > 1:
        raise OptionError(
            f"{file} holds different numbers of samples: "
            + ", ".join(f"{n} of {name}" for name, n in counts.items()),
            fix="Stack the same number of samples of every input along axis 0.",
        )
    return [
        {name: stack[number] for name, stack in stacks.items()} for number in range(next(iter(counts.values())))
    ]


def _stack(array: npt.NDArray[Any], node: Declared, file: Path) -> Sequence[npt.NDArray[Any]]:
    """The samples in one array, each with the model's own shape."""
    if array.dtype.newbyteorder("=") != node.dtype:
        raise OptionError(
            f'{file}: input "{node.name}" is {array.dtype}, the model wants {node.dtype}.',
            fix=f'Save it with .astype("{node.dtype}"), scaled as the model wants it.',
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise OptionError(
            f'{file}: input "{node.name}" holds NaN or infinite values.',
            cause="They would make the ranges of all tensors behind it useless.",
            fix="Leave such samples out.",
        )
    array = array.astype(node.dtype.newbyteorder("="), order="C", copy=False)
    want = node.shape
    if _fits(array.shape, want):
        return [array]
    if want[:1] == (1,) and _fits(array.shape, want[1:]):  # one sample without its batch
        return [array[np.newaxis]]
    if _fits(array.shape[1:], want):
        return [np.asarray(one) for one in array]
    if want[:1] == (1,) and _fits(array.shape[1:], want[1:]):
        return [array[number : number + 1] for number in range(len(array))]
    shape = "x".join("?" if size is None else str(size) for size in want) or "scalar"
    raise OptionError(
        f'{file}: input "{node.name}" has the shape {"x".join(map(str, array.shape)) or "scalar"}, '
        f"the model wants {shape}.",
        fix=f"Save it as {shape}, or several such samples stacked along axis 0.",
    )


def _fits(shape: tuple[int, ...], want: tuple[int | None, ...]) -> bool:
    return len(shape) == len(want) and all(
        size is None or size == got for got, size in zip(shape, want, strict=True)
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else ""
    return ", ".join(names[:MAX_NAMES_SHOWN]) + more
