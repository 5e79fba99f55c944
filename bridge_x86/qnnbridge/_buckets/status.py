"""What a session with buckets says of itself. Immutable; made anew for each question."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from qnnbridge_host.cache.status import CacheStatus
from qnnbridge_protocol.specs import Placement

WEIGHTS: Final = (
    "Each variant has its own copy of the weights: QNN can keep those of several variants in one context binary, "
    "but its HTP simulator cannot load such a one, so that sessions can do it could not be tested."
)


@dataclasses.dataclass(frozen=True, slots=True)
class VariantStatus:
    """One compiled size.

    made: whether its session exists. made_at_call: it was made while a call waited for it, and not by ``warm()``.
    seconds: making it took, be it compiled or loaded from the cache. runs: calls, and parts of calls, in it.
    """

    sizes: Mapping[str, int]
    made: bool
    made_at_call: bool
    seconds: float
    runs: int
    placement: Placement | None
    cache: CacheStatus | None

    def __str__(self) -> str:
        text = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        if self.placement is None:
            return f"{text}: not made yet"
        where = f"{self.placement.qnn_nodes} nodes on QNN, {self.placement.cpu_nodes} on the CPU"
        ahead = ", made at a call" if self.made_at_call else ""
        return f"{text}: {where}, made in {self.seconds:.2f} s{ahead}, {self.runs} runs"


@dataclasses.dataclass(frozen=True, slots=True)
class BucketStatus:
    """All variants, the smallest first, and what became of the calls.

    calls: all of them. padded: calls, and parts of calls, whose inputs were made larger. split: calls done in
    several parts. on_cpu: calls too large for the largest bucket, which ran on the CPU (``overflow="cpu"``).
    cut: output -> how each dimension follows from the sizes, ``None`` for one that does not; without the outputs in
    uncut, which are not cut for the reason there. weights: whether variants share them, in words.
    """

    variants: tuple[VariantStatus, ...]
    calls: int
    padded: int
    split: int
    on_cpu: int
    cut: Mapping[str, tuple[str | None, ...]]
    uncut: Mapping[str, str]
    weights: str = WEIGHTS

    def __str__(self) -> str:
        lines = [str(variant) for variant in self.variants]
        lines.append(
            f"{self.calls} calls, {self.split} in several parts, {self.on_cpu} on the CPU because they were too "
            f"large; {self.padded} runs with padding"
        )
        lines += [f"output {name!r} is not cut: {reason}" for name, reason in self.uncut.items()]
        return "\n".join(lines)
