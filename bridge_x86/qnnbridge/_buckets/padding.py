"""Check whether padding changes the results of a model by comparing CPU results with and without padding.

The comparison consists of pure functions that run the model through a `RunFree` function, which sends requests to a
host. `PaddingCheck` decides when to compare. `FreeModel` is the model with free sizes, in one session on the CPU.
When a session with buckets is created, runs of this model show how output sizes follow from input sizes, over which
distance an input influences an output, and, if the application does not specify padding, which padding does not
change the results.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from qnnbridge._buckets import BucketArguments, sizes_text
from qnnbridge._buckets.batches import (
    Context,
    OutputShapes,
    Windowing,
    cut,
    pad_feeds,
    refuse_too_large,
    sizes_of,
    too_large,
    variant_for,
)
from qnnbridge._buckets.contents import generated_values, highest_valid, is_mask, shows_nothing
from qnnbridge._buckets.plan import EDGE, BucketPlan, Sizes, free_dimensions, make_plan
from qnnbridge._buckets.probing import OF_THE_MODEL, find_shapes, needed_values, zeros
from qnnbridge._buckets.reach import check_exact, ends_of, measure
from qnnbridge._buckets.rows import mixed_text, mixes
from qnnbridge._session import Verify
from qnnbridge._session.numbers_check import MAX_BYTES, made_up
from qnnbridge._supervision.host_process import seconds_left
from qnnbridge._supervision.retries import CallLimits
from qnnbridge._values.feed_rules import Array
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import Lock
from qnnbridge_os.shield import start_thread
from qnnbridge_protocol.errors import BridgeError, ModelError, NumbersDiffer, OptionError, OrtError, RemoteError
from qnnbridge_protocol.shown import Shown, more
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge._buckets.variants import Variants
    from qnnbridge_protocol.model_records import ModelDescription
    from qnnbridge_protocol.shown import Fact


_log = log_of("qnnbridge.buckets")

# Tolerance, relative to the largest result. Sums with a different number of terms are rounded differently, by about
# 1e-6 in float32.
TOLERANCE: Final = 1e-3

# Function that runs the model on the CPU and returns all outputs, in order.
RunFree = Callable[[Mapping[str, Any]], "list[Any]"]


@dataclasses.dataclass(frozen=True, slots=True)
class PaddingDifference:
    """Difference in one output, for one input and one variant.

    Attributes:
        sizes, bucket: sizes of the input without padding, and sizes of the variant.
        difference: largest absolute difference; ``nan`` if the output does not consist of numbers.
        largest: largest absolute value of the output without padding.
        where: description of the location and size of the difference; '' if there is none.
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
            return f"{case}: unchanged" + (f" (difference {self.difference:.2g})" if self.difference else "")
        return f"{case}: {self.where}"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class PaddingReport(Shown):
    """Effect of padding on each output, for all tried inputs and variants. `str()` returns the differences with
    advice. masks: inputs whose name contains "mask"."""

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

    def _shown_facts(self) -> Iterator[Fact]:
        yield f"padding {'does not change' if self.ok else 'changes'} the results", "" if self.ok else "problem"
        yield from more(str(self).split("\n")[1:])


def verify_padding(
    plan: BucketPlan,
    shapes: OutputShapes,
    names: Sequence[str],
    samples: Sequence[Mapping[str, Any]],
    run_free: RunFree,
    tolerance: float,
) -> PaddingReport:
    """Compare results with and without padding. Raise `OptionError` if no feed needs padding."""
    found: list[PaddingDifference] = []
    for feeds in samples:
        true = sizes_of(plan, {name: feeds[name].shape for name in plan.inputs if feeds.get(name) is not None})
        for number in too_large(plan, true):
            raise refuse_too_large(plan, true, number)
        fitting = variant_for(plan, true)
        largest = plan.largest()
        assert fitting is not None
        # Compare the variant that a call would use, and the variant with the most padding.
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
    """Return a description of the largest difference in a report; '' if there is no difference."""
    bad = [output for output in report.outputs if not output.ok] if report is not None else []
    return str(max(bad, key=lambda output: output.difference)) if bad else ""


def _run_unpadded(plan: BucketPlan, true: Sizes, feeds: Mapping[str, Any], run_free: RunFree) -> list[Any]:
    try:
        return run_free(feeds)
    except (OrtError, RemoteError) as error:
        raise ModelError(
            f"The model does not run with these sizes without padding ({plan.text(true)}), so padded results "
            "cannot be compared.",
            cause=error.message,
            fix="Give feeds of sizes that the model accepts.",
        ) from None


def _compare(
    plan: BucketPlan, name: str, expected: Any, value: Any, true: Sizes, variant: Sizes, tolerance: float
) -> PaddingDifference:
    sizes, bucket = plan.named(true), plan.named(variant)

    def report(ok: bool, difference: float = 0.0, largest: float = 0.0, where: str = "") -> PaddingDifference:
        return PaddingDifference(name, sizes, bucket, ok, difference, largest, where)

    if expected is None or value is None:
        return report(expected is value, where="only one of the two runs returns a result")
    one, other = np.asarray(expected), np.asarray(value)
    if one.shape != other.shape:
        return report(False, where=f"the shape is {other.shape}, without padding it is {one.shape}")
    if one.dtype.kind not in "biuf":
        same = bool(np.array_equal(one, other))
        return report(same, float("nan"), where="" if same else "the values differ")
    if one.size == 0:
        return report(True)
    # Booleans and integers are usually results of a classification, so any difference counts.
    exact = one.dtype.kind in "biu"
    a, b = one.astype(np.float64), other.astype(np.float64)
    finite = np.abs(a[np.isfinite(a)])
    largest = float(finite.max()) if finite.size else 0.0
    with np.errstate(invalid="ignore"):
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    # Treat NaN in only one result, or infinities of opposite signs, as an infinite difference.
    difference[np.isnan(difference)] = np.inf
    # `tiny` keeps the limit above zero if all results are 0.
    limit = 0.0 if exact else tolerance * max(largest, np.finfo(np.float32).tiny)
    wrong = difference > limit
    worst = float(difference.max())
    if not wrong.any():
        return report(True, worst, largest)
    return report(False, worst, largest, _where(wrong, worst, largest))


def _where(wrong: Array, worst: float, largest: float) -> str:
    share = int(wrong.sum())
    size = f"by up to {worst:.3g} (largest result: {largest:.3g})"
    text = f"{share} of {wrong.size} values differ, {size}"
    places = []
    for axis in range(wrong.ndim):
        length = wrong.shape[axis]
        hit = np.flatnonzero(wrong.any(tuple(other for other in range(wrong.ndim) if other != axis)))
        if length <= 1:
            continue
        if len(hit) < length and hit[-1] == length - 1 and hit[0] == length - len(hit):
            return f"{text}; only the last {len(hit)} of {length} positions of axis {axis}, next to the padding"
        if len(hit) < length:
            places.append(f"{len(hit)} of {length} positions of axis {axis}, from {hit[0]} to {hit[-1]}")
    return f"{text}; {'; '.join(places)}" if places else f"{text}, at all positions"


def _advice(bad: Sequence[PaddingDifference], masks: Sequence[str]) -> list[str]:
    edges = all("next to the padding" in output.where for output in bad)
    if edges:
        return [
            "  Cause: An output value depends on neighbouring inputs (through a convolution or a backward "
            "recurrence), and at the end of the input the neighbours are padding.",
            "  Fix: Set pad= to the value that the model itself pads with, use more buckets, or ignore the last "
            "values.",
        ]
    if masks:
        named = " and ".join(repr(name) for name in masks)
        return [
            f"  Cause: Values far from the padding change, although the model has {named}: the padding value of "
            "the mask does not hide the padding, or an operation over the whole length ignores the mask.",
            f"  Fix: Pad {named} with the value that marks padding (pad=, usually 0), or give buckets of exactly "
            "the sizes that are needed.",
        ]
    return [
        "  Cause: Values far from the padding change: an operation of the model runs over the whole length, "
        "padding included (a mean, a maximum, a normalization, an attention or a recurrence).",
        "  Fix: Pad with a value that the model ignores (pad=), export the model with a mask as an input, or give "
        "buckets of exactly the sizes that are needed.",
    ]


# --- comparison when the session is created, and at the first padded call of a variant -------

Feeds = Mapping[str, Any]


class PaddingCheck:
    """Check whether padding changes the results of calls. `found`: the first change reported, or ''. Thread-safe.

    Args:
        mode: "warn" compares in a background thread; "raise" compares before `run` returns.
    """

    def __init__(self, label: str, mode: Verify) -> None:
        self.found = ""
        self._label = label
        self._mode = mode
        self._lock = renew_in_forks(Lock())
        # Variants for which a padded call was compared.
        self._tried: set[Sizes] = set()

    def report(self, change: str) -> None:
        """Record that padding changed results. Log a warning for the first change. Ignore an empty `change`."""
        with self._lock:
            if not change or self.found:
                return
            self.found = change
        _log.warning(
            "%s: padding changes results: %s. verify_padding(feeds) tests other inputs. Buckets of exact sizes "
            "avoid padding; pad='edge', or no pad= at all, may also help.",
            self._label,
            change,
        )

    def padded_call(
        self, variant: Sizes, feeds: Feeds, compare: Callable[[Feeds], str], *, again: bool = False
    ) -> None:
        """Check a call that is padded to this variant.

        Args:
            feeds: inputs without padding.
            compare: function that returns a description of how padding changes the results for given feeds.
            again: whether to compare even if an earlier call of this variant was compared. Set for a call whose
                results are also compared with the CPU.

        Raises:
            NumbersDiffer: padding changes results, and the mode is "raise".
        """
        # If a call is too large to compare, the next call of the same variant is compared instead.
        if self._mode == "off" or sum(np.asarray(value).nbytes for value in feeds.values()) > MAX_BYTES:
            return
        with self._lock:
            first = (again and not self.found) or variant not in self._tried
            # Mark the variant before the comparison, so that only one of several simultaneous calls is compared.
            self._tried.add(variant)
        if self._mode == "warn":
            if first:
                # Copy the arrays, because the application may modify them before the thread reads them.
                copies = {name: np.array(value) for name, value in feeds.items()}
                start_thread("qnnbridge padding", self._compare, copies, compare)
            return
        if first:
            self._compare(feeds, compare)
        if self.found:
            raise NumbersDiffer(
                f"{self._label} returns different results with and without padding.",
                cause=f"Padding changes results: {self.found}.",
                fix="Give buckets of exact sizes, or another padding value such as pad='edge', and test it with "
                "verify_padding(feeds). To disable this check, use verify=False.",
            )

    def _compare(self, feeds: Feeds, compare: Callable[[Feeds], str]) -> None:
        try:
            self.report(compare(feeds))
        except BridgeError as error:  # an error of the comparison must not fail the call
            _log.debug("%s: padding was not compared: %s", self._label, error.message)


# --- observations of the model with free sizes, when the session is created -------------------------------

# Tolerance of the trials, relative to the largest value. It is larger than the rounding differences of sums with a
# different number of terms, and smaller than the effect of a padding that changes the results.
HARMLESS: Final = 1e-4
# Factor and offset of random samples: mixed signs, all negative, all positive. An operator such as Max or Relu
# hides the effect of zero padding in one of these samples and shows it in another.
SPREADS: Final = ((1.0, 0.0), (-1.0, -0.1), (1.0, 0.1))
# Number of consecutive sizes to try: after an operator with a stride, the effect of padding is visible only at some
# sizes.
STRIDES: Final = 4
_WITH_ZEROS: Final = "With zeros: "
# Names of inputs that contain the length of another input: `waveforms_lens`, `input_length`, `n_frames`.
_LENGTH: Final = re.compile(r"(?:^|_)(?:lens?|lengths?|sizes?|num|n)(?:_|$)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True)
class FreeModel:
    """The model with free sizes, on the CPU.

    Attributes:
        model: description of the model, without the inputs that `constants` contains.
        constants: values of the inputs that the application has fixed with ``fix=``.
        highest: the largest valid integer of each padded integer input, found in the first trial.
    """

    variants: Variants
    model: ModelDescription
    constants: Mapping[str, Any]
    highest: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs, in order."""
        return [node.name for node in self.model.outputs]

    def zeros(self, plan: BucketPlan, sizes: Sizes) -> dict[str, Any]:
        """Return feeds of zeros with these sizes."""
        return zeros(self.model.inputs, {**self.variants.recipe.spec.free_dimensions_by_name, **plan.named(sizes)})

    def run(self, feeds: Mapping[str, Any], deadline: float | None, names: Sequence[str] = ()) -> list[Any]:
        """Run the model on the CPU and return the named outputs; default: all outputs."""
        # Call `free` before computing the remaining time, because `free` may compile the model.
        free, every = self.variants.free(deadline), {**feeds, **self.constants}
        limits = CallLimits(seconds_left(deadline))
        return free.run_values(tuple(names or self.outputs), every, None, limits)

    def shapes(self, arguments: BucketArguments, deadline: float | None) -> OutputShapes:
        """Return how the sizes of the outputs follow from the sizes of the inputs."""
        plan = self.variants.plan
        if len(plan.fixed) == len(plan.symbols):
            # Without padding no output is cut, so the relations are not needed, and the model is not run.
            return OutputShapes({})

        def run(sizes: Sizes) -> dict[str, tuple[int, ...] | None]:
            values = self.run(self.zeros(plan, sizes), deadline)
            return {name: getattr(value, "shape", None) for name, value in zip(self.outputs, values, strict=True)}

        others = {dim.symbol for dim in free_dimensions(self.model.inputs) if dim.symbol is not None}
        return find_shapes(plan, arguments, self.model.outputs, others - {*plan.symbols}, run)

    def windows(self, shapes: OutputShapes, given: int | None, deadline: float | None) -> Windowing:
        """Return the settings for calls in windows. Measure over how many steps outputs depend on inputs, or check
        the `given` number. Raise `OptionError` if the model cannot run in windows."""
        plan = self.variants.plan
        number = plan.chunk
        assert number is not None
        first = plan.smallest()

        def free_feeds(size: int) -> Mapping[str, Any]:
            return self._ordinary(plan, (*first[:number], size, *first[number + 1 :]), deadline)

        def run(feeds: Mapping[str, Any]) -> list[Any] | None:
            return self._run_if_valid(feeds, deadline)

        ends = ends_of(plan, shapes, self.outputs, number)
        highest = self._highest(plan, free_feeds(first[number]), deadline)
        if given is None:
            context = measure(plan, number, ends, free_feeds, run, highest, self.model.operators)
        else:
            context = Context(given, given)
        check_exact(plan, number, ends, context, free_feeds, run, highest)
        name = plan.symbols[number]
        _log.info(
            "each output step depends on %d earlier and %d later steps of %s", context.left, context.right, name
        )
        return Windowing(number, context, dict(zip(self.outputs, ends, strict=True)))

    def _run_if_valid(self, feeds: Mapping[str, Any], deadline: float | None) -> list[Any] | None:
        """Return the outputs; ``None`` if the model refuses these values."""
        try:
            return self.run(feeds, deadline)
        except OF_THE_MODEL as error:
            _log.debug("The model does not accept generated values: %s", error.message)
            return None

    def _ordinary(self, plan: BucketPlan, sizes: Sizes, deadline: float | None) -> dict[str, Any]:
        """Return inputs of these sizes that the host generated, with valid lengths and positions; zeros for inputs
        that the host cannot generate."""
        feeds = self.zeros(plan, sizes)
        made = self._made_up(feeds, deadline)
        return {name: made.get(name, value) for name, value in feeds.items()}

    def _made_up(self, feeds: Mapping[str, Array], deadline: float | None) -> dict[str, Any]:
        types = {node.name: node.type for node in self.model.inputs}
        nodes = [NodeInfo(name, types[name], value.shape) for name, value in feeds.items()]
        try:
            return made_up(self.variants.free(deadline).remote.host, self.variants.recipe.label, nodes, deadline)
        except OptionError:
            return {}

    def _highest(self, plan: BucketPlan, feeds: Mapping[str, Array], deadline: float | None) -> dict[str, int]:
        """Return the largest valid integer of each padded integer input."""
        names = [
            name
            for name in _padded_or_cut(plan)
            if feeds[name].dtype.kind in "iu" and not is_mask(name, feeds[name]) and name not in self.highest
        ]
        self.highest.update(highest_valid(feeds, names, lambda one: self._run_if_valid(one, deadline)))
        return self.highest

    def mixed_rows(self, deadline: float | None) -> frozenset[str]:
        """Return the split dimensions whose rows depend on each other: calls must not be divided along them."""
        plan = self.variants.plan
        return frozenset(plan.symbols[number] for number in plan.split if self._mixes(plan, number, deadline))

    def _mixes(self, plan: BucketPlan, number: int, deadline: float | None) -> bool:
        first = plan.smallest()
        sizes = (*first[:number], 2, *first[number + 1 :])
        try:
            highest = self._highest(plan, self._ordinary(plan, sizes, deadline), deadline)
            feeds = next(self._samples(plan, sizes, highest))
            return mixes(plan, number, feeds, lambda one: self.run(one, deadline))
        except OF_THE_MODEL as error:
            _log.debug("rows of %s were not compared: %s", plan.symbols[number], error.message)
            return False

    # --- choice of the padding ---

    def decide(
        self, arguments: BucketArguments, shapes: OutputShapes, deadline: float | None, mixed: frozenset[str]
    ) -> tuple[BucketArguments, str]:
        """Choose a `pad` or `chunk` that does not change the results. The current plan must pad with zeros.

        Args:
            mixed: result of `mixed_rows`.

        Return the arguments, and the choice as an application would write it (``pad=0``). Raise `OptionError` if
        every choice changes the results.
        """
        plan = self.variants.plan
        padded = [name for number, name in enumerate(plan.symbols) if number not in plan.unpadded]
        # Try zeros before windows, because one padded run is faster than several overlapping runs.
        changes = self._changes_of_zeros(shapes, deadline)
        if not changes:
            return dataclasses.replace(arguments, pad_all=0, decided=True), "pad=0"
        reasons = [f"In a trial {mixed_text(mixed)}.", changes] if mixed else [changes]
        # Windows are only possible along one dimension.
        for name in padded if len(padded) == 1 else ():
            chunked = dataclasses.replace(arguments, chunk={name: None})
            try:
                self.variants.plan = make_plan(chunked, self.model, self.variants.recipe.label)
                self.windows(shapes, None, deadline)
            # The model cannot run in windows: record its error as the result of the trial. Other errors, such as a
            # missed deadline or a dead host, propagate.
            except OF_THE_MODEL as error:
                reasons.append(f"{error.message} {error.cause or ''}".rstrip())
            else:
                return chunked, f"chunk={name!r}"
        try:
            make_plan(arguments, self.model, self.variants.recipe.label)
        except OptionError as refusal:
            # Raise the error about the missing padding values, with the failed trials as its evidence.
            refusal.evidence = (*refusal.evidence, *reasons)
            if changes.startswith(_WITH_ZEROS):
                refusal.cause = "Padding with zeros changes the results of this model."
                refusal.fix = self._fix_of_zeros(arguments, shapes, deadline)
            elif shapes.uncut and (constants := self._sizes_in_inputs(deadline)):
                named = ", ".join(map(repr, constants))
                refusal.cause = (
                    f"In a trial the model failed with zeros in {named}; such an input may contain a size."
                )
                refusal.fix = (
                    f"If the value is always the same, make it a constant, for example fix={{'constants': "
                    f"{constants!r}}} (the model runs with it). Otherwise: {refusal.fix}"
                )
            raise
        raise AssertionError("a plan that lacks padding was accepted")

    def _sizes_in_inputs(self, deadline: float | None) -> dict[str, Any]:
        """Return values for small inputs that contain a size, in the notation of the argument ``fix=``."""
        feeds = self.zeros(self.variants.plan, self.variants.plan.smallest())
        return needed_values(self.model.inputs, feeds, lambda one: self._run_if_valid(one, deadline) is not None)

    def _fix_of_zeros(self, arguments: BucketArguments, shapes: OutputShapes, deadline: float | None) -> str:
        """Return the advice for a model whose results change if it is padded with zeros."""
        exact = "Create one session for each size that is needed: a session with a single size pads nothing."
        edge = f"Give pad='edge', which changed nothing in trials with generated inputs. Or: {exact}"
        try:
            self.variants.plan = make_plan(
                dataclasses.replace(arguments, pad_all=EDGE, decided=True), self.model, self.variants.recipe.label
            )
            report, _ = self._trial(shapes, deadline, HARMLESS)
        except OF_THE_MODEL:
            report = None
        return edge if report else exact

    def _changes_of_zeros(self, shapes: OutputShapes, deadline: float | None) -> str:
        """Return how padding with zeros changes the results, or why that is unknown; '' if nothing changes."""
        report, reason = self._trial(shapes, deadline, HARMLESS)
        if report is None:
            return reason
        return "" if report else _WITH_ZEROS + str(next(output for output in report.outputs if not output.ok))

    def changes_of_padding(self, shapes: OutputShapes, deadline: float | None) -> str:
        """Return how the application's padding changes the results in a trial; '' if the trial shows no change."""
        try:
            report, _ = self._trial(shapes, deadline, TOLERANCE)
        except BridgeError as error:  # the trial is only a check, so the session can be used without it
            _log.debug("%s: padding was not tested: %s", self.variants.recipe.label, error.message)
            return ""
        return worst_change(report)

    def _trial(
        self, shapes: OutputShapes, deadline: float | None, tolerance: float
    ) -> tuple[PaddingReport | None, str]:
        """Compare results for generated inputs with and without the plan's padding. Return (report, ''), or
        (``None``, reason) if the trial is not conclusive; the reason is '' if the plan never pads."""

        plan, names = self.variants.plan, self.outputs
        if all(buckets == (1,) or number in plan.unpadded for number, buckets in enumerate(plan.buckets)):
            return None, ""
        if shapes.uncut:
            return None, f"Output {next(iter(shapes.uncut))!r} cannot be cut to its size."
        # Use buckets larger than 1 in the trial if there are any, because a bucket of size 1 is never padded.
        small = tuple(next((one for one in buckets if one > 1), buckets[0]) for buckets in plan.buckets)
        if plan.only is not None and small not in plan.only:
            small = next((one for one in plan.variants() if min(one) > 1), plan.largest())
        one = dataclasses.replace(plan, buckets=tuple((size,) for size in small), only=None)
        true = tuple(
            # About a third of the input is padding, which is enough to change a mean, a maximum or a normalization.
            size if number in plan.unpadded else max(1, size - 1 - size // 3)
            for number, size in enumerate(small)
        )
        try:
            highest = self._highest(one, self._ordinary(one, true, deadline), deadline)
            samples = list(self._samples(one, true, highest))
            results = [self.run(feeds, deadline) for feeds in samples]
            unshown = [
                name
                for name, *values in zip(names, *results, strict=True)
                if np.asarray(values[0]).dtype.kind != "f" or shows_nothing(values)
            ]
            for name in unshown:
                if not self._ignores_padding(name, samples, [one[names.index(name)] for one in results], deadline):
                    return None, f"Generated inputs do not show what output {name!r} depends on."
            for by in range(1, STRIDES):
                shorter = tuple(
                    size if number in plan.unpadded else max(1, size - by) for number, size in enumerate(true)
                )
                # Add only samples that the model accepts: some models accept only multiples of a size.
                few = list(self._samples(one, shorter, highest))[: len(SPREADS) if highest else 1]
                samples += [feeds for feeds in few if self._run_if_valid(feeds, deadline) is not None]
            report = verify_padding(one, shapes, names, samples, lambda feeds: self.run(feeds, deadline), tolerance)
        except OF_THE_MODEL as error:
            return None, f"Padding could not be tested on the CPU: {error.message}"
        return report, ""

    def _ignores_padding(
        self,
        name: str,
        samples: Sequence[Mapping[str, Any]],
        values: Sequence[Any],
        deadline: float | None,
    ) -> bool:
        """Return whether an output depends only on inputs that are not padded, such as an input that contains the
        number of frames. Such an output differs between samples, but does not change if all padded inputs are set
        to NaN."""
        padded = _padded(self.variants.plan)
        if shows_nothing(values) or any(samples[0][one].dtype.kind != "f" for one in padded):
            return False
        for feeds, expected in zip(samples, values, strict=True):
            # NaN propagates through all computations that use it, so an output that does not change does not depend
            # on the padded inputs.
            poisoned = {
                one: np.full_like(value, np.nan) if one in padded else value for one, value in feeds.items()
            }
            if not np.array_equal(self.run(poisoned, deadline, [name])[0], expected):
                return False
        return True

    def _samples(self, plan: BucketPlan, sizes: Sizes, highest: Mapping[str, int]) -> Iterator[dict[str, Any]]:
        for seed, (factor, offset) in enumerate(SPREADS):
            rng = np.random.default_rng(seed)
            feeds = self.zeros(plan, sizes)
            made = {
                name: generated_values(name, value, rng, factor, offset, (seed % 2, highest.get(name, 1)))
                for name, value in feeds.items()
            }
            for name, number in _lengths(plan, feeds).items():
                # Use the full length in the first sample and shorter lengths in the later samples.
                made[name] = np.full_like(feeds[name], max(1, sizes[number] - seed * max(1, sizes[number] // 4)))
            yield made


def lacks_padding(arguments: BucketArguments, model: ModelDescription, label: str) -> bool:
    """Return whether a session needs padding that the application did not specify."""
    if arguments.pad or arguments.pad_all is not None or arguments.chunk:
        return False
    try:
        make_plan(dataclasses.replace(arguments, pad_all=0, decided=True), model, label)
    except BridgeError:
        return False  # another argument is invalid; the caller's own check of the arguments reports it
    try:
        make_plan(arguments, model, label)
    except OptionError:
        return True
    return False


def _padded(plan: BucketPlan) -> dict[str, set[int]]:
    """Return the padded inputs with the indices of the dimensions along which each input is padded."""
    along = {name: {*one.axes.values()} - plan.unpadded for name, one in plan.inputs.items()}
    return {name: numbers for name, numbers in along.items() if numbers}


def _padded_or_cut(plan: BucketPlan) -> list[str]:
    """Return the inputs that are padded or divided into windows."""
    return [name for name, one in plan.inputs.items() if one.axes]


def _lengths(plan: BucketPlan, feeds: Mapping[str, Array]) -> dict[str, int]:
    """Return the inputs that contain the length of other inputs, with the index of the dimension that has this
    length."""
    padded, found = _padded(plan), {}
    for name, value in feeds.items():
        if value.dtype.kind in "iu" and name not in padded and _LENGTH.search(name):
            named = [numbers for one, numbers in padded.items() if name.startswith(one)]
            meant = set().union(*(named or padded.values()))
            # If the value may be the length of several dimensions, treat the input like any other integer input.
            if len(meant) == 1:
                found[name] = meant.pop()
    return found
