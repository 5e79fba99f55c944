"""What `verify_model` tells. Immutable data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools.model_work.comparing import OutputDifference

if TYPE_CHECKING:
    from qnnbridge_protocol.specs import Placement

Kind = Literal["given", "random", "extreme"]
Status = Literal["agrees", "differs", "qnn-fails", "cpu-fails", "both-fail"]


@dataclasses.dataclass(frozen=True, slots=True)
class Trap:
    """A silent difference that has a name. name: stable, for programs. output: where it was seen."""

    name: str
    what: str
    fix: str
    output: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Tolerance:
    """least_cosine, most_relative: of an output. rounding: a difference up to this counts for nothing."""

    least_cosine: float
    most_relative: float
    rounding: float

    def is_broken_by(self, output: OutputDifference) -> bool:
        return self.is_doubtful(output) and (
            output.kind != "float" or bool(output.different) or self._counts(output)
        )

    def is_doubtful(self, output: OutputDifference) -> bool:
        """Whether it looks wrong, however small it is."""
        if output.mismatch is not None or output.different:
            return True
        if output.kind != "float":
            return False
        turned = output.cosine is not None and output.cosine < self.least_cosine
        return turned or output.max_relative > self.most_relative

    def _counts(self, output: OutputDifference) -> bool:
        return output.mismatch is not None or output.max_abs > self.rounding


@dataclasses.dataclass(frozen=True, slots=True)
class CaseResult:
    """One set of inputs. name: `random 1`, `NaN`. error: of the side that failed."""

    name: str
    kind: Kind
    status: Status
    outputs: tuple[OutputDifference, ...] = ()
    traps: tuple[Trap, ...] = ()
    error: BridgeError | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Culprit:
    """The first node whose result differs. alone: how much it differs when it gets the CPU's own inputs.

    case: of the inputs. tried: sessions that the search took. trap: if its operator is known for that.
    """

    case: str
    name: str
    op: str
    difference: OutputDifference
    alone: OutputDifference | None
    tried: int
    trap: Trap | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Verification:
    """agrees: on everything that was given or random; extreme inputs are told as traps, and fail nothing."""

    path: Path
    chip: str
    agrees: bool
    cases: tuple[CaseResult, ...]
    placement: Placement | None = None
    culprit: Culprit | None = None
    error: BridgeError | None = None
    sizes: Mapping[str, tuple[int | str | None, ...] | None] = dataclasses.field(default_factory=dict)
    tolerance: Tolerance | None = None
    simulator: bool = False
    seconds: float = 0.0

    @property
    def traps(self) -> tuple[Trap, ...]:
        """Each once, in the order in which they hit."""
        found = {trap.name: trap for case in self.cases for trap in case.traps}
        if self.culprit is not None and self.culprit.trap is not None:
            found.setdefault(self.culprit.trap.name, self.culprit.trap)
        return tuple(found.values())
