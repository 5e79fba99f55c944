"""Calibration samples from .npz and .npy files, checked before any work begins, and their split into sets.

A sample contains a value for every input of the model. The keys of an .npz file are the inputs' names; an .npy file
is for a model with a single input. An array that has one axis more than the model's input, or a batch larger than
1, is a stack of samples. Files are read once for the check and again for use, so the samples need not fit in
memory.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qnnbridge_host.graph import shapes
from qnnbridge_host.numerics.sampling import Feeds, random_samples
from qnnbridge_os.missing import why_missing
from qnnbridge_protocol import elements
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.shown import listed
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_tools import feeds as readers
from qnnbridge_tools.arguments import InputFile

SUFFIXES = (".npz", ".npy")
MAX_NAMES_SHOWN = 8

# A fifth of the samples is held out, but at most this many: each held-out sample runs on the CPU and on QNN.
MOST_HELD_OUT = 10
# With fewer samples, none is held out: all are needed to measure the ranges.
LEAST_TO_HOLD_OUT = 3
# With fewer samples than this, a warning is printed.
FEW_SAMPLES = 10


class FileSamples:
    """Sequence of samples that are read on access. It caches the last file and is not thread-safe.

    Args:
        places: file of each sample, and its number within the file.
        declared: the model's inputs.
    """

    def __init__(self, places: Sequence[tuple[Path, int]], declared: Sequence[NodeInfo]) -> None:
        self._places = list(places)
        self._declared = list(declared)
        self._read: tuple[Path, list[Feeds]] | None = None

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Feeds]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> Feeds:
        file, place = self._places[number]
        # Cache the last file, because the samples of a file are usually read in sequence.
        if self._read is None or self._read[0] != file:
            self._read = (file, _samples_of(file, self._declared))
        return self._read[1][place]


def load(sources: Iterable[Path], declared: Sequence[NodeInfo]) -> tuple[FileSamples, list[str]]:
    """Return (all samples of files and folders, warnings); samples are ordered by file name. Raise
    `OptionError`.
    """
    places: list[tuple[Path, int]] = []
    ignored: set[str] = set()
    for file in list_files(sources):
        samples = _samples_of(file, declared, ignored)
        places += [(file, number) for number in range(len(samples))]
    if not places:
        raise OptionError(
            "The calibration files contain no samples.", fix="Give at least one sample; 50 to 200 are usual."
        )
    notes = [f"Ignored arrays that are not inputs of the model: {', '.join(sorted(ignored)[:MAX_NAMES_SHOWN])}."]
    return FileSamples(places, declared), notes if ignored else []


def list_files(sources: Iterable[Path]) -> list[Path]:
    """Return the sample files; files of a folder are in natural order (2 before 10)."""
    files: list[Path] = []
    for source in sources:
        if source.is_dir():
            inside = [path for path in source.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()]
            if not inside:
                raise OptionError(
                    f"The folder {source} contains no .npz or .npy files.",
                    fix="Save each sample there: numpy.savez(FILE, input_name=array, ...).",
                )
            files += sorted(inside, key=_natural)
        elif not source.exists():
            raise OptionError(f"The calibration file or folder {source} does not exist.", **why_missing(source))
        elif source.suffix.lower() not in SUFFIXES:
            raise OptionError(f"{source} is neither a folder nor an .npz or .npy file.")
        else:
            files.append(source)
    return files


def shapes_in(sources: Iterable[Path], names: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes of the first file's arrays, to suggest sizes for free dimensions; empty if unreadable."""
    try:
        arrays = _arrays_of(list_files(sources)[0], names, set())
    except (OptionError, IndexError):
        return {}
    return {name: array.shape for name, array in arrays.items()}


def _natural(path: Path) -> list[tuple[int, str]]:
    # Use (number, text) pairs, because Python cannot compare a number with a string.
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", path.name)]


def _arrays_of(file: Path, names: Sequence[str], ignored: set[str]) -> dict[str, npt.NDArray[Any]]:
    inputs = listed(names, MAX_NAMES_SHOWN)
    if file.suffix.lower() == ".npy":
        if len(names) != 1:
            raise OptionError(
                f"{file} contains one array, but the model has {len(names)} inputs: {inputs}.",
                fix="Save samples as .npz files with the inputs' names as keys.",
            )
        return {names[0]: np.asarray(readers.load([InputFile(names[0], file)], None)[0].value)}
    arrays = {feed.name: np.asarray(feed.value) for feed in readers.load([], file)}
    missing = [name for name in names if name not in arrays]
    if missing:
        raise OptionError(
            f'{file} has no array "{missing[0]}", which the model needs as input.',
            cause=f"The file has {listed(list(arrays), MAX_NAMES_SHOWN) or 'no array'}; the model needs {inputs}.",
            fix="Save the file with the inputs' names as keys: numpy.savez(FILE, **{"
            + ", ".join(f'"{name}": ...' for name in names[:MAX_NAMES_SHOWN])
            + "}).",
        )
    ignored |= arrays.keys() - set(names)
    return {name: arrays[name] for name in names}


def _samples_of(file: Path, declared: Sequence[NodeInfo], ignored: set[str] | None = None) -> list[Feeds]:
    if not declared:
        raise OptionError("The model has no inputs, so it needs no samples.")
    arrays = _arrays_of(file, [node.name for node in declared], set() if ignored is None else ignored)
    stacks = {node.name: _stacked(arrays[node.name], node, file) for node in declared}
    counts = {name: len(stack) for name, stack in stacks.items()}
    if len(set(counts.values())) > 1:
        raise OptionError(
            f"{file} contains different numbers of samples: "
            + ", ".join(f"{n} of {name}" for name, n in counts.items()),
            fix="Stack the same number of samples of every input along axis 0.",
        )
    return [
        {name: stack[number] for name, stack in stacks.items()} for number in range(next(iter(counts.values())))
    ]


def _stacked(array: npt.NDArray[Any], node: NodeInfo, file: Path) -> Sequence[npt.NDArray[Any]]:
    """Return the samples of one array, each in the shape of the model's input."""
    declared = elements.from_ort_type(node.type)
    element = declared.element if declared.kind == "tensor" else None
    if element is None or not elements.LAYOUTS[element].named:
        raise OptionError(
            f'Input "{node.name}" has the type {node.type}, which sample files cannot contain.',
            fix="Export only the part of the model after the operators that read this input, or use a model with a "
            "float32 input.",
        )
    dtype = elements.numpy_dtype(element)
    if dtype.kind == "O" and array.dtype.kind == "U":  # Files store strings of fixed width, not objects.
        array = array.astype(object)
    # Ignore the file's byte order: values are converted to the native order below.
    if array.dtype.newbyteorder("=") != dtype:
        raise OptionError(
            f'{file}: input "{node.name}" is {array.dtype}, but the model expects {dtype}.',
            fix=f'Scale the values as the model expects, and save the array with .astype("{dtype}").',
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise OptionError(
            f'{file}: input "{node.name}" contains NaN or infinite values.',
            cause="Such values make the measured ranges of all tensors that depend on this input useless.",
            fix="Remove the samples that contain such values.",
        )
    array = array.astype(dtype.newbyteorder("="), order="C", copy=False)
    if node.shape is None:  # if the input declares no shape, an array is one sample
        return [array]
    want = node.shape
    if _fits(array.shape, want):
        return [array]
    if want[:1] == (1,) and _fits(array.shape, want[1:]):  # the array is one sample without a batch axis
        return [array[np.newaxis]]
    if _fits(array.shape[1:], want):
        return [np.asarray(one) for one in array]
    # Split samples stacked without a batch axis into batches of 1.
    if want[:1] == (1,) and _fits(array.shape[1:], want[1:]):
        return [array[number : number + 1] for number in range(len(array))]
    shape = "x".join("?" if size is None else str(size) for size in want) or "scalar"
    raise OptionError(
        f'{file}: input "{node.name}" has the shape {"x".join(map(str, array.shape)) or "scalar"}, '
        f"but the model expects {shape}.",
        fix=f"Save the array as {shape}, or stack several samples of this shape along axis 0.",
    )


def _fits(shape: tuple[int, ...], want: Sequence[int | str | None]) -> bool:
    return len(shape) == len(want) and all(size in (None, got) for got, size in zip(shape, want, strict=True))


class ChosenSamples(Sequence[Feeds]):
    """Selected samples of one or several sequences, read on access.

    Args:
        places: for each sample, its sequence and its index there.
    """

    def __init__(self, places: Sequence[tuple[Any, int]]) -> None:
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return ChosenSamples(self._places[number])
        samples, place = self._places[number]
        return samples[place]

    def __iter__(self) -> Iterator[Feeds]:
        # `Sequence.__iter__` would treat an IndexError raised while reading a file as the end of the iteration.
        return (samples[place] for samples, place in self._places)


@dataclasses.dataclass(frozen=True, slots=True)
class RandomSamples:
    """Random samples, generated on each access: equal seeds give equal values."""

    declared: Sequence[NodeInfo]
    count: int
    seed: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Feeds:
        return next(random_samples(self.declared, 1, self.seed + number))


@dataclasses.dataclass(frozen=True, slots=True)
class SampleSets:
    """The samples for calibration and for comparison.

    Args:
        held_out: true if the samples in `compared` are not used for calibration.
    """

    calibration: Sequence[Feeds]
    compared: Sequence[Feeds]
    held_out: bool
    warnings: tuple[str, ...]

    @property
    def every(self) -> Sequence[Feeds]:
        """All samples, the calibration samples first."""
        if not self.held_out:
            return self.calibration
        return ChosenSamples([(one, n) for one in (self.calibration, self.compared) for n in range(len(one))])

    @property
    def held_numbers(self) -> frozenset[int]:
        """Numbers of the held-out samples in `every`."""
        first = len(self.calibration)
        return frozenset(range(first, first + len(self.compared))) if self.held_out else frozenset()


def gather(model: Any, sources: Sequence[Path], *, random: int, seed: int, held_out: int | None) -> SampleSets:
    """Read or generate samples and split them into sets. Raise `OptionError`.

    Held-out samples are spread evenly, because files are often sorted by class.
    """
    declared = [shapes.declared(value) for value in shapes.real_inputs(model.graph)]
    warnings: list[str] = []
    samples: FileSamples | RandomSamples
    if random and sources:
        raise OptionError("Calibration samples cannot be combined with random samples.", fix="Omit --random.")
    if random:
        extra = _held_out_of(random) if held_out is None else held_out
        samples, held_out = RandomSamples(declared, random + extra, seed), extra
        warnings.append(
            "Calibrated with random values, whose ranges are unrelated to real data: the result shows whether the "
            "model runs, not how accurate it is. Use --calibration with real samples."
        )
    elif sources:
        samples, warnings = load(sources, declared)
        if len(samples) < FEW_SAMPLES:
            warnings.append(
                f"Only {len(samples)} samples are given; 50 to 200 that cover the expected inputs are usual."
            )
    else:
        raise OptionError(
            "No calibration samples.",
            cause="Quantising needs samples to measure the range of each tensor.",
            fix="Give --calibration FOLDER with .npz or .npy files of real inputs, or --random 16 for a first try.",
        )
    count = len(samples)
    kept = _held_out_of(count) if held_out is None else held_out
    if kept >= count:
        raise OptionError(
            f"{kept} held-out samples of {count} leave none for calibration.", fix="Give more, or --held-out 0."
        )
    numbers = [int(number) for number in np.linspace(0, count - 1, kept + 2)[1:-1].round()]
    if len(set(numbers)) < kept:  # Rounding produced an index twice, so use a formula that cannot.
        numbers = [(2 * number + 1) * count // (2 * kept) for number in range(kept)]
    calibrating = ChosenSamples([(samples, number) for number in range(count) if number not in numbers])
    compared = ChosenSamples([(samples, number) for number in numbers or range(min(count, MOST_HELD_OUT))])
    return SampleSets(calibrating, compared, bool(numbers), tuple(warnings))


def _held_out_of(count: int) -> int:
    return 0 if count < LEAST_TO_HOLD_OUT else min(MOST_HELD_OUT, max(1, count // 5))
