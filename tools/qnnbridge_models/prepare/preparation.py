"""The result of `prepare_model`. Immutable data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from qnnbridge_host.model.chips import chip_of

StepState = Literal["done", "kept", "failed", "skipped"]

# What stands for the chip where none is named, on a machine with an NPU that has no name here.
HOST_CHIP = "host"


@dataclasses.dataclass(frozen=True, slots=True)
class StepResult:
    """One step.

    Args:
        state: kept, it was done before and nothing that it depends on has changed.
        chip: of the steps that are done for each.
        files: relative to the folder.
        document: the document of the command whose work it is.
        problem: why it failed or was skipped, as text.
        variant: the sizes of its bucket as text (`seq=16`); empty without buckets.
    """

    name: str
    state: StepState
    chip: str | None = None
    files: tuple[str, ...] = ()
    document: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    problem: str = ""
    seconds: float = 0.0
    variant: str = ""

    @property
    def id(self) -> str:
        return step_id(self.name, self.chip, self.variant)

    @property
    def title(self) -> str:
        name = f"{self.name} ({self.variant})" if self.variant else self.name
        return name if self.chip is None else f"{name} for {chip_label(self.chip)}"


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedFolder:
    """A prepared folder.

    Args:
        model: the one to open sessions of where nothing compiled fits, relative to the folder; of the first bucket.
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
    def targets(self) -> tuple[tuple[str | None, str], ...]:
        """Chip and variant of each compiled model."""
        return tuple((step.chip, step.variant) for step in self.steps_of("verify"))

    def step(self, name: str, chip: str | None, variant: str) -> StepResult | None:
        wanted = (name, chip, variant)
        return next((step for step in self.steps if (step.name, step.chip, step.variant) == wanted), None)


def step_id(name: str, chip: str | None, variant: str) -> str:
    """Of a step in the journal."""
    return " ".join(part for part in (name, chip, variant) if part)


def chip_label(chip: str | None) -> str:
    """`SoC 60 (SC8380XP, V73)`."""
    from qnnbridge_host.model import chips

    return chips.chip_label(int(chip)) if chip is not None and chip.isdecimal() else "the chip of the host"


def product_of(chip: str | None) -> str:
    """Its name in shops; empty if it is not known."""
    known = chip_of(int(chip)) if chip is not None and chip.isdecimal() else None
    return known.product if known is not None else ""
