"""The options of `prepare_model`, and its result. Immutable data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from qnnbridge_host.graph.dimensions import Dimensions
from qnnbridge_host.model.chips import chip_of

StepState = Literal["done", "kept", "failed", "skipped"]

# What stands for the chip where none is named, on a machine with an NPU that has no name here.
HOST_CHIP = "host"


@dataclasses.dataclass(frozen=True, slots=True)
class PrepareOptions:
    """The command line, read.

    Args:
        inputs: real inputs for the verification.
        timeout_s: for each call of the host.
    """

    shapes: Mapping[str, Sequence[int | None]] = dataclasses.field(default_factory=dict)
    dims: Dimensions = dataclasses.field(default_factory=Dimensions)
    constants: Mapping[str, float] = dataclasses.field(default_factory=dict)
    skip: tuple[str, ...] = ()
    quantize: bool = False
    calibration: tuple[Path, ...] = ()
    soc_models: tuple[str, ...] = ()
    provider_options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    inputs: tuple[Path, ...] = ()
    extreme: bool = True
    seed: int = 0
    timeout_s: float | None = None
    host_python: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class StepResult:
    """One step.

    Args:
        state: kept, it was done before and nothing that it depends on has changed.
        chip: of the steps that are done for each.
        files: relative to the folder.
        told: the document of the command whose work it is.
        problem: why it failed or was skipped, in words.
    """

    name: str
    state: StepState
    chip: str | None = None
    files: tuple[str, ...] = ()
    told: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    problem: str = ""
    seconds: float = 0.0

    @property
    def title(self) -> str:
        return self.name if self.chip is None else f"{self.name} for {chip_label(self.chip)}"


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedFolder:
    """A prepared folder.

    Args:
        model: the one to open sessions of where nothing compiled fits, relative to the folder.
        notes: decisions that were made for the user.
        verdict: ready, or the obstacle, in one sentence.
    """

    source: Path
    source_sha256: str
    folder: Path
    model: str
    steps: tuple[StepResult, ...]
    verdict: str
    ready: bool
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def steps_of(self, name: str) -> tuple[StepResult, ...]:
        return tuple(step for step in self.steps if step.name == name)

    @property
    def chips(self) -> tuple[str | None, ...]:
        return tuple(step.chip for step in self.steps_of("verify"))

    def step(self, name: str, chip: str | None) -> StepResult | None:
        return next((step for step in self.steps if (step.name, step.chip) == (name, chip)), None)


def chip_label(chip: str | None) -> str:
    """`SoC 60 (SC8380XP, V73)`."""
    from qnnbridge_host.model import chips

    return chips.chip_label(int(chip)) if chip is not None and chip.isdecimal() else "the chip of the host"


def product_of(chip: str | None) -> str:
    """Its name in shops; empty if it is not known."""
    known = chip_of(int(chip)) if chip is not None and chip.isdecimal() else None
    return known.product if known is not None else ""
