"""`qnnbridge verify --buckets`: a model at each of the sizes that a session with buckets compiles."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qnnbridge_models.verify import report
from qnnbridge_models.verify.verification import Verification
from qnnbridge_protocol.errors import BridgeError, OptionError, OrtError
from qnnbridge_tools import output


@dataclasses.dataclass(frozen=True, slots=True)
class BucketsVerification:
    """The results by their sizes. ruled_out: sizes that the CPU does not take together, with its reason."""

    results: tuple[tuple[Mapping[str, int], Verification], ...]
    ruled_out: tuple[tuple[Mapping[str, int], str], ...]

    @property
    def agrees(self) -> bool:
        return all(result.verdict == "agrees" for _, result in self.results)


def verify_buckets(
    buckets: Sequence[Mapping[str, int]], verify: Callable[[Mapping[str, int]], Verification]
) -> BucketsVerification:
    """Verify the model at each of the sizes.

    Args:
        buckets: sizes of free dimensions by name.
        verify: verifies it at these sizes.

    Raises:
        OrtError, OptionError: the CPU takes none of the sizes.
    """
    results: list[tuple[Mapping[str, int], Verification]] = []
    ruled_out: list[tuple[Mapping[str, int], str]] = []
    refused: BridgeError | None = None
    for sizes in buckets:
        try:
            results.append((sizes, verify(sizes)))
        except (OrtError, OptionError) as error:
            refused = refused or error
            ruled_out.append((sizes, error.cause or error.message))
    if refused is not None and not results:
        raise refused
    return BucketsVerification(tuple(results), tuple(ruled_out))


def heading(sizes: Mapping[str, int]) -> str:
    """How the report calls one."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def print_buckets(result: BucketsVerification) -> None:
    """The verdict of each, below the reports of all."""
    pairs = [
        (heading(sizes), f"{one.verdict}: {one.reason}" if one.reason else one.verdict)
        for sizes, one in result.results
    ]
    left_out = "left out, the CPU does not take it"
    pairs += [(heading(sizes), f"{left_out}: {reason}") for sizes, reason in result.ruled_out]
    output.print_pairs("Buckets", pairs)


def document(result: BucketsVerification) -> dict[str, Any]:
    return {
        "agrees": result.agrees,
        "buckets": [{"sizes": dict(sizes), **report.document(one)} for sizes, one in result.results],
        "ruled_out": [{"sizes": dict(sizes), "reason": reason} for sizes, reason in result.ruled_out],
    }
