"""Whether padding changes the results of a model: it is run as it is and padded, on the CPU, and compared.

The comparison is pure functions around a `RunFree`, which alone touches a host;
`PaddingCheck` decides when it is made.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from qnnbridge._buckets import sizes_text
from qnnbridge._buckets.batches import (
    OutputShapes,
    cut,
    pad_feeds,
    refuse_too_large,
    sizes_of,
    too_large,
    variant_for,
)
from qnnbridge._buckets.plan import BucketPlan, Sizes
from qnnbridge._feed_rules import Array
from qnnbridge._session import Verify
from qnnbridge._session.numbers_check import MAX_BYTES
from qnnbridge_os.native import Lock
from qnnbridge_os.shield import start_thread
from qnnbridge_protocol.errors import BridgeError, ModelError, NumbersDiffer, OptionError, OrtError, RemoteError

# Relative to the largest result. Sums of other lengths are rounded otherwise: some 1e-6 for 32 bits.
TOLERANCE: Final = 1e-3

# All outputs, in order, of the model on the CPU.
RunFree = Callable[[Mapping[str, Any]], "list[Any]"]


@dataclasses.dataclass(frozen=True, slots=True)
class PaddingDifference:
    """One output, of one input, in one variant.

    sizes: of the input. bucket: of the variant. difference: the largest, absolute; ``nan`` for what has no numbers.
    largest: result without padding, absolute. where: as text, empty where all is equal.
    """

    output: str
    sizes: Mapping[str, int]
    bucket: Mapping[str, int]
    ok: bool
    difference: float
    largest: float
    where: str = ""

    def __str__(self) -> str:
        case = f"{self.output!r}, {sizes_text(self.sizes)} padded to {sizes_text(self.bucket)}"
        if self.ok:
            return f"{case}: the same" + (f" (difference {self.difference:.2g})" if self.difference else "")
        return f"{case}: {self.where}"


@dataclasses.dataclass(frozen=True, slots=True)
class PaddingReport:
    """ok: padding changed nothing. outputs: each output in each case. masks: inputs of the model that are named so.
    As text: the differences, with advice."""

    outputs: tuple[PaddingDifference, ...]
    tolerance: float
    masks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(output.ok for output in self.outputs)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        bad = [output for output in self.outputs if not output.ok]
        if not bad:
            cases = len({(sizes_text(o.sizes), sizes_text(o.bucket)) for o in self.outputs})
            return f"Padding does not change the results ({cases} cases, {len(self.outputs)} outputs compared)."
        return "\n".join(
            ["Padding changes the results:", *(f"  {output}" for output in bad), *_advice(bad, self.masks)]
        )


def verify_padding(
    plan: BucketPlan,
    shapes: OutputShapes,
    names: Sequence[str],
    samples: Sequence[Mapping[str, Any]],
    run_free: RunFree,
    tolerance: float,
) -> PaddingReport:
    """samples: checked feeds. Raises `OptionError` if none of them would be padded."""
    found: list[PaddingDifference] = []
    for feeds in samples:
        true = sizes_of(plan, {name: feeds[name].shape for name in plan.inputs if feeds.get(name) is not None})
        for number in too_large(plan, true):
            raise refuse_too_large(plan, true, number)
        fitting = variant_for(plan, true)
        largest = plan.largest()
        assert fitting is not None
        # The variant of real calls, and the one with the most padding.
        variants = [variant for variant in dict.fromkeys((fitting, largest)) if variant != true]
        if not variants:
            continue
        whole = _run_unpadded(plan, true, feeds, run_free)
        for variant in variants:
            padded = run_free(pad_feeds(plan, feeds, variant))
            for name, expected, value in zip(names, whole, padded, strict=True):
                if name in shapes.found:
                    result = cut(plan, shapes, [name], [value], true, variant)[0]
                    found.append(_compare(plan, name, expected, result, true, variant, tolerance))
    if not found:
        raise OptionError(
            "None of these feeds is padded, so there is nothing to compare.",
            fix=f"Give feeds that are smaller than their bucket; the largest is {plan.text(plan.largest())}.",
        )
    return PaddingReport(tuple(found), tolerance, tuple(name for name in plan.inputs if "mask" in name.lower()))


def worst_change(report: PaddingReport | None) -> str:
    """What padding changes most, as text; "" for nothing."""
    bad = [output for output in report.outputs if not output.ok] if report is not None else []
    return str(max(bad, key=lambda output: output.difference)) if bad else ""


def _run_unpadded(plan: BucketPlan, true: Sizes, feeds: Mapping[str, Any], run_free: RunFree) -> list[Any]:
    try:
        return run_free(feeds)
    except (OrtError, RemoteError) as error:
        raise ModelError(
            f"The model does not run with the sizes themselves ({plan.text(true)}), so there is nothing to compare "
            "padded results with.",
            cause=error.message,
            fix="Give feeds of sizes that the model takes.",
        ) from None


def _compare(
    plan: BucketPlan, name: str, expected: Any, value: Any, true: Sizes, variant: Sizes, tolerance: float
) -> PaddingDifference:
    sizes, bucket = plan.named(true), plan.named(variant)

    def report(ok: bool, difference: float = 0.0, largest: float = 0.0, where: str = "") -> PaddingDifference:
        return PaddingDifference(name, sizes, bucket, ok, difference, largest, where)

    if expected is None or value is None:
        return report(expected is value, where="there is a result in one case only")
    one, other = np.asarray(expected), np.asarray(value)
    if one.shape != other.shape:
        return report(False, where=f"the shape is {other.shape}, without padding it is {one.shape}")
    if one.dtype.kind not in "biuf":
        same = bool(np.array_equal(one, other))
        return report(same, float("nan"), where="" if same else "the values are others")
    if one.size == 0:
        return report(True)
    # Booleans and integers are decisions: any difference counts.
    exact = one.dtype.kind in "biu"
    a, b = one.astype(np.float64), other.astype(np.float64)
    finite = np.abs(a[np.isfinite(a)])
    largest = float(finite.max()) if finite.size else 0.0
    with np.errstate(invalid="ignore"):
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    # NaN on one side only, or infinities of both signs: as wrong as can be.
    difference[np.isnan(difference)] = np.inf
    # `tiny` keeps the limit above zero where all results are 0.
    limit = 0.0 if exact else tolerance * max(largest, np.finfo(np.float32).tiny)
    wrong = difference > limit
    worst = float(difference.max())
    if not wrong.any():
        return report(True, worst, largest)
    return report(False, worst, largest, _where(wrong, worst, largest))


def _where(wrong: Array, worst: float, largest: float) -> str:
    share = int(wrong.sum())
    size = f"by up to {worst:.3g} where the largest result is {largest:.3g}"
    text = f"{share} of {wrong.size} values differ, {size}"
    places = []
    for axis in range(wrong.ndim):
        length = wrong.shape[axis]
        hit = np.flatnonzero(wrong.any(tuple(other for other in range(wrong.ndim) if other != axis)))
        if length <= 1:
            continue
        if len(hit) < length and hit[-1] == length - 1 and hit[0] == length - len(hit):
            return f"{text}; only the last {len(hit)} of {length} of axis {axis}, beside the padding"
        if len(hit) < length:
            places.append(f"{len(hit)} of {length} of axis {axis}, from {hit[0]} to {hit[-1]}")
    return f"{text}; {'; '.join(places)}" if places else f"{text}, from the first to the last"


def _advice(bad: Sequence[PaddingDifference], masks: Sequence[str]) -> list[str]:
    edges = all("beside the padding" in output.where for output in bad)
    if edges:
        return [
            "  Cause: The model looks at neighbours (a convolution, a recurrence backwards), and at the end of the "
            "input these are padding now.",
            "  Fix: Pad with what the model itself pads with (pad=), use more buckets, or drop the last values.",
        ]
    if masks:
        named = " and ".join(repr(name) for name in masks)
        return [
            f"  Cause: Values far from the padding change, although the model has {named}: it is padded with "
            "something that does not mask, or does not reach everything that runs over the whole length.",
            f"  Fix: Pad {named} with the value that masks (pad=, mostly 0), or give buckets of exactly the sizes "
            "that are needed.",
        ]
    return [
        "  Cause: Values far from the padding change: something in the model runs over the whole length, padding "
        "included, as a mean, a maximum, a normalization, an attention or a recurrence does.",
        "  Fix: Pad with a value that the model ignores (pad=), export the model with a mask as an input, or give "
        "buckets of exactly the sizes that are needed.",
    ]


# --- when it is tried: as the session is made, and at a variant's first padded call -------------------------

_log = logging.getLogger("qnnbridge.buckets")

Feeds = Mapping[str, Any]


class PaddingCheck:
    """found: what padding changes, as text; empty for nothing. Any thread.

    Args:
        mode: "warn" compares behind the call's back; "raise" before its result is handed out.
    """

    def __init__(self, label: str, mode: Verify) -> None:
        self.found = ""
        self._label = label
        self._mode = mode
        self._lock = Lock()
        # Variants of which a padded call was compared.
        self._tried: set[Sizes] = set()

    def report(self, change: str) -> None:
        """Padding was found to change this, if anything. Warns once."""
        with self._lock:
            if not change or self.found:
                return
            self.found = change
        _log.warning(
            "%s: padding changes results: %s. verify_padding(feeds) tries other inputs. Exact sizes change "
            "nothing; pad='edge', or no pad= at all, may do.",
            self._label,
            change,
        )

    def padded_call(self, variant: Sizes, feeds: Feeds, compare: Callable[[Feeds], str]) -> None:
        """A call is padded to this variant.

        Args:
            feeds: without the padding.
            compare: finds what padding changes in them.

        Raises:
            NumbersDiffer: padding changes results, for ``verify="raise"``.
        """
        # A call that is too large to be compared leaves the comparison to the next of its variant.
        if self._mode == "off" or sum(np.asarray(value).nbytes for value in feeds.values()) > MAX_BYTES:
            return
        with self._lock:
            first = variant not in self._tried
            # Before it is compared: of several calls at once one is.
            self._tried.add(variant)
        if self._mode == "warn":
            if first:
                # The application may change its own meanwhile.
                copies = {name: np.array(value) for name, value in feeds.items()}
                start_thread("qnnbridge padding", self._look, copies, compare)
            return
        if first:
            self._look(feeds, compare)
        if self.found:
            raise NumbersDiffer(
                f"{self._label} gives other results with padding than without.",
                cause=f"Output {self.found}.",
                fix="Give exact sizes, pad='edge' or another value; verify_padding(feeds) tries it. verify=False "
                "accepts the results.",
            )

    def _look(self, feeds: Feeds, compare: Callable[[Feeds], str]) -> None:
        try:
            self.report(compare(feeds))
        except BridgeError as error:  # the call itself is none the worse
            _log.debug("%s: its padding was not compared: %s", self._label, error.message)
