"""What is said of a node: where it runs, and why. Immutable data."""

from __future__ import annotations

import dataclasses
from typing import Final, Literal

Place = Literal["qnn", "cpu", "folded", "fails", "crash"]
"""folded: ONNX Runtime computes it, or takes it away, before anything is placed. fails: no session can be made.
crash: QNN ends the process."""

BAD: Final = ("cpu", "fails", "crash")


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """rule: which one decided, "" if none had an objection. reason: in words. fix: what to do about it."""

    place: Place
    rule: str = ""
    reason: str = ""
    fix: str = ""


ON_QNN: Final = Verdict("qnn")
