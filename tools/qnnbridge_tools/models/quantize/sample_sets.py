"""Which samples calibrate and which are kept for the comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools.models.quantize import calibration
from qnnbridge_tools.models.shared import shapes
from qnnbridge_tools.models.shared.sampling import Feeds, random_samples

MOST_HELD_OUT = 10
LEAST_TO_HOLD_OUT = 3
FEW_SAMPLES = 10


class Chosen(Sequence[Feeds]):
    """Some samples of a larger set, read when they are used."""

    def __init__(self, samples: Any, numbers: Sequence[int]) -> None:
        self._samples = samples
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: Any) -> Any:
        return self._samples[self._numbers[number]]

    def __iter__(self) -> Iterator[Feeds]:
        return (self._samples[number] for number in self._numbers)


class RandomSamples:
    """Made up anew each time they are read: the same seed gives the same values."""

    def __init__(self, declared: Sequence[calibration.Declared], count: int, seed: int) -> None:
        self._declared = declared
        self._count = count
        self._seed = seed

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Feeds:
        return next(random_samples(self._declared, 1, self._seed + number))


@dataclasses.dataclass(frozen=True, slots=True)
class SampleSets:
    """held_out: `compared` are not among `calibration`."""

    calibration: Sequence[Feeds]
    compared: Sequence[Feeds]
    held_out: bool
    warnings: tuple[str, ...]


def gather(model: Any, sources: Sequence[Path], *, random: int, seed: int, held_out: int | None) -> SampleSets:
    """Samples of files, or made up. Those held out are spread evenly, because files are often sorted by class."""
    declared = declared_inputs(model)
    warnings: list[str] = []
    samples: calibration.FileSamples | RandomSamples
    if random and sources:
        raise OptionError("Calibration samples and random ones exclude each other.", fix="Leave --random away.")
    if random:
        extra = _held_out_of(random) if held_out is None else held_out
        samples, held_out = RandomSamples(declared, random + extra, seed), extra
        warnings.append(
            "Calibrated with random values, whose ranges have nothing to do with real data: this shows whether the "
            "model runs, not how good it is. Use --calibration with real samples."
        )
    elif sources:
        samples, warnings = calibration.load(sources, declared)
        if len(samples) < FEW_SAMPLES:
            warnings.append(f"{len(samples)} samples are few; 50 to 200 that cover what will come are usual.")
    else:
        raise OptionError(
            "No calibration samples.",
            cause="The ranges of all tensors are measured with them.",
            fix="--calibration FOLDER with .npz or .npy files of real inputs; --random 16 only to try things out.",
        )
    count = len(samples)
    kept = _held_out_of(count) if held_out is None else held_out
    if kept >= count:
        raise OptionError(
            f"{kept} samples held out of {count} leave none to calibrate with.", fix="Give more, or --held-out 0."
        )
    numbers = [int(number) for number in np.linspace(0, count - 1, kept + 2)[1:-1].round()]
    calibrating = Chosen(samples, [number for number in range(count) if number not in numbers])
    compared = Chosen(samples, numbers) if numbers else Chosen(samples, range(min(count, MOST_HELD_OUT)))
    return SampleSets(calibrating, compared, bool(numbers), tuple(warnings))


def declared_inputs(model: Any) -> list[calibration.Declared]:
    """Of a model whose inputs are tensors of fixed sizes."""
    from qnnbridge_protocol.elements import ElementType

    return [
        calibration.Declared(
            value.name,
            f"tensor({ElementType(value.type.tensor_type.elem_type).text})",
            tuple(dimension.dim_value for dimension in value.type.tensor_type.shape.dim),
        )
        for value in shapes.real_inputs(model.graph)
    ]


def _held_out_of(count: int) -> int:
    return 0 if count < LEAST_TO_HOLD_OUT else min(MOST_HELD_OUT, max(1, count // 5))
