"""`BucketedSession`: runs of any size on variants of the model that are compiled for a few sizes.

An `InferenceSession` with ``buckets=`` forwards its calls to a `BucketedSession`. A call runs in the smallest
variant that it fits into, with padding, and its outputs are cut back. The smallest variant is created at once.
Thread-safe.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge._buckets import BucketArguments
from qnnbridge._buckets.batches import (
    Windowing,
    cut,
    join,
    joined,
    joints,
    pad_feeds,
    parts,
    refuse_pair,
    refuse_too_large,
    shown_inputs,
    shown_outputs,
    sizes_of,
    too_large,
    unpadded,
    variant_for,
    wanted_variants,
    window_feeds,
    window_length,
    windows,
)
from qnnbridge._buckets.padding import (
    TOLERANCE,
    FreeModel,
    PaddingCheck,
    PaddingReport,
    RunFree,
    lacks_padding,
    verify_padding,
    worst_change,
)
from qnnbridge._buckets.plan import (
    BucketPlan,
    Sizes,
    check_options,
    check_overrides,
    dimensions_left,
    make_plan,
    name_axes,
    refuse_dimensions_left,
    without_constants,
)
from qnnbridge._buckets.probing import OF_THE_MODEL, check_cut
from qnnbridge._buckets.variants import FREE, BucketStatus, Progress, Variants, VariantStatus, opener, warm
from qnnbridge._callers import warn_application
from qnnbridge._feed_rules import INVALID_ARGUMENT
from qnnbridge._feeds import Counted, FeedChecker
from qnnbridge._ort_value import to_application
from qnnbridge._providers import QNN
from qnnbridge._session.create import identify
from qnnbridge._session.numbers_check import NOT_RUN, NumbersCheck, WholeCalls, verify_mode
from qnnbridge._session.runs import RunArguments
from qnnbridge._session.session import CpuFallbackWarning, Warn, check_outputs
from qnnbridge._supervision.host_process import deadline_after, seconds_left
from qnnbridge.errors import as_onnxruntime
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import Lock
from qnnbridge_protocol.errors import BridgeError, InvalidArgument, OptionError
from qnnbridge_protocol.model_records import WORST_FIRST, NumbersReport
from qnnbridge_protocol.specs import Placement
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._session import SessionRecipe
    from qnnbridge._supervision.host_process import OnDeadline
    from qnnbridge_protocol.model_records import ModelDescription

_log = log_of("qnnbridge.buckets")


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """Settings that all parts of a call share.

    Attributes:
        names: the requested outputs.
        wire: return the outputs in their wire form.
        is_part: not compared with the CPU, because the whole call is.
    """

    names: list[str]
    how: RunArguments
    deadline: float | None
    wire: bool
    is_part: bool = False


@dataclasses.dataclass(slots=True)
class _CallsInParts:
    """Number of calls that run in windows or in parts."""

    calls: int = 0


class BucketedSession:
    """The variants of an `InferenceSession` with ``buckets=``, and the dispatch of calls to them.

    Args:
        timeout: seconds for the creation, and default for calls.
        warn: warns the application about calls and variants that run on the CPU.
    """

    def __init__(
        self,
        recipe: SessionRecipe,
        arguments: BucketArguments,
        host: Host,
        retry: int,
        timeout: float | None,
        on_deadline: OnDeadline = "raise",
        warn: Warn = warn_application,
    ) -> None:
        self._bucket_arguments, self._timeout, self._warn = arguments, timeout, warn
        # Keys are the counters of `BucketStatus`.
        self._counts: collections.Counter[str] = collections.Counter()
        self._counting = renew_in_forks(Lock())
        self._ruled_out: dict[str, str] = {}
        deadline = deadline_after(timeout)
        try:
            # The host reads the model's inputs without loading the model, so the application needs no onnx.
            model = identify(host, recipe, deadline, operators=True)
            recipe = dataclasses.replace(recipe, identity=model.model)
            declared, (recipe, named) = model.inputs, name_axes(recipe, model.inputs, arguments.sizes)
            self.recipe, model = recipe, dataclasses.replace(model, inputs=named)
            self._mode = verify_mode(recipe.verify) if self._asks_for_qnn else "off"
            self._padding = PaddingCheck(recipe.label, self._mode)
            constants, model = without_constants(recipe.spec, model)
            # If the application does not specify padding, `FreeModel.decide` chooses by runs on the CPU with free
            # sizes.
            decides, self._decided = lacks_padding(arguments, model, recipe.label), ""
            # The trials need a plan; zeros are tried first, so the first plan pads with zeros.
            planned = dataclasses.replace(arguments, pad_all=0, decided=True) if decides else arguments
            plan = self._planned(planned, recipe, model)
            self._variants = variants = Variants(plan, recipe, opener(host, retry, timeout, warn))
            self._free = free = FreeModel(variants, model, constants)
            try:
                if decides:
                    self._shapes = free.shapes(arguments, deadline)
                    arguments, self._decided = free.decide(arguments, self._shapes, deadline)
                    _log.info("%s: padding is not specified; chosen: %s", recipe.label, self._decided)
                    self._bucket_arguments = arguments
                    variants.plan = plan = make_plan(arguments, model, recipe.label)
                self._plan = plan
                # The smallest variant is compiled at once, so that a model that QNN refuses fails at the creation
                # and not at a call.
                self.first = variants.get(plan.smallest(), "open", deadline, on_deadline)
                if not decides:
                    self._shapes = free.shapes(arguments, deadline)
                self._windows: Windowing | None = None
                if not decides and self._tries_padding(arguments):
                    self._padding.report(free.changes_of_padding(self._shapes, deadline))
                if plan.chunk is not None:
                    context = arguments.chunk[plan.symbols[plan.chunk]]
                    self._windows = free.windows(self._shapes, context, deadline)
            except BaseException:
                # Without this, the sessions opened so far would stay in the host until this process ends.
                variants.close()
                raise
        except BridgeError as error:
            raise as_onnxruntime(error) from None
        self._takes_zeros = True
        self._in_parts = _CallsInParts()
        whole = WholeCalls(
            dataclasses.replace(recipe.spec, fix=None), self._parts_text(), constants, self._in_parts
        )
        self._whole = NumbersCheck(self.first._remote, self._mode, whole)
        fixed = recipe.spec.free_dimensions_by_name
        self.inputs = shown_inputs([node for node in declared if node.name not in constants], fixed)
        self.outputs = shown_outputs(model.outputs, self._shapes, fixed)
        self.output_names = [node.name for node in self.outputs]
        self.checker = FeedChecker(self.inputs, self.first._remote.info.overridable_initializers)

    def _planned(self, arguments: BucketArguments, recipe: SessionRecipe, model: ModelDescription) -> BucketPlan:
        spec = recipe.spec
        plan = make_plan(arguments, model, recipe.label)
        check_overrides(plan, spec.free_dimensions_by_name)
        check_cut(plan, arguments, model.outputs)
        check_options(spec.options, spec.config_entries)
        if self._asks_for_qnn and spec.fallback == "error" and not spec.free_dimensions_by_denotation:
            left = dimensions_left(plan, model, spec.free_dimensions_by_name)
            if left:
                raise refuse_dimensions_left(left, recipe.label)
        return plan

    def _tries_padding(self, arguments: BucketArguments) -> bool:
        """Return whether this session is for the NPU, with padding that the application chose.

        Every session tests the padding, also if its variants come from the cache: the effect of padding is not a
        property of the compiled model, and every program that relies on the padding must be warned.
        """
        chosen = bool(arguments.pad) or arguments.pad_all is not None
        return self._asks_for_qnn and chosen and not arguments.chunk

    def _parts_text(self) -> str:
        """Return how calls are divided and how the model is rewritten: results depend on both besides the model."""
        plan, windowing, fix = self._plan, self._windows, self.recipe.spec.fix
        text = f"buckets {plan.symbols} {plan.buckets} split {sorted(plan.split)} fix {fix}"
        return text if windowing is None else f"{text} windows {windowing.number} {windowing.context}"

    @property
    def _asks_for_qnn(self) -> bool:
        providers = self.recipe.spec.providers
        return not providers or any(provider.name == QNN for provider in providers)

    # --- running ---

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], how: RunArguments, *, wire: bool
    ) -> list[Any]:
        """Run like `InferenceSession.run`, or like its `run_values` with `wire`.

        The first call of a size without a session waits for its compilation.
        """
        try:
            how.check()
            checked = self.checker.check(input_feed)
            self.checker.refuse_missing(checked)
            feeds = {name: value for name, value, _ in checked}
            names = check_outputs(output_names, self.output_names) or self.output_names
            deadline = deadline_after(self._timeout if how.timeout is None else how.timeout)
            self._count("calls")
            return self._answer(_Call(names, how, deadline, wire), feeds)
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    def _answer(self, call: _Call, feeds: Mapping[str, Any]) -> list[Any]:
        plan = self._plan
        try:
            true = self._sizes_of(feeds)
        except InvalidArgument as error:
            # Sizes contradict each other (two inputs with one symbol). With overflow="cpu" ONNX Runtime decides.
            if self._bucket_arguments.overflow != "cpu":
                raise
            return self._answer_on_cpu(call, feeds, error.message.partition(INVALID_ARGUMENT)[2])
        if self._windows is not None and true[self._windows.number]:
            return self._answer_windows(call, feeds, true, self._windows)
        large = too_large(plan, true)
        if large:
            return self._answer_large(call, feeds, true, large)
        variant = variant_for(plan, true)
        if variant is None:
            raise refuse_pair(plan, true)
        if variant != true:
            self._count("padded")
        return self._answer_padded(call, feeds, true, variant)

    def _answer_padded(self, call: _Call, feeds: Mapping[str, Any], true: Sizes, variant: Sizes) -> list[Any]:
        values = self._run_in(variant, call, pad_feeds(self._plan, feeds, variant), true)
        # Needed without padding, too: `cut` then returns the values unchanged.
        return cut(self._plan, self._shapes, call.names, values, true, variant)

    def _answer_windows(
        self, call: _Call, feeds: Mapping[str, Any], true: Sizes, windowing: Windowing
    ) -> list[Any]:
        """Run in overlapping windows along the chunked symbol; pad the other symbols as in any call."""
        number, context = windowing.number, windowing.context
        size = true[number]
        # If no bucket is short enough, use the exact size, so that nothing is padded.
        length = window_length(self._plan.buckets[number], size, context) or size
        # A single window does not overlap with another, and nothing is joined.
        if length == size:
            return self._answer_window(call, feeds, number)
        self._count("chunked")
        cuts = windows(size, length, context)
        feeds_of_windows = window_feeds(self._plan, feeds, number, cuts, length)
        part_of = dataclasses.replace(call, is_part=True)
        results = [self._answer_window(part_of, part, number) for part in feeds_of_windows]
        joined_results = join(results, cuts, [windowing.ends[name] for name in call.names], size)
        self._compare_whole(call, feeds, joined_results)
        return joined_results

    def _answer_window(self, call: _Call, feeds: Mapping[str, Any], number: int) -> list[Any]:
        """Run one window in the variant of its length; create a variant for a length that is not a bucket."""
        plan = self._plan
        true = self._sizes_of(feeds)
        smallest = (*true[:number], plan.buckets[number][0], *true[number + 1 :])
        fitting = variant_for(plan, true if true[number] in plan.buckets[number] else smallest)
        if fitting is None:
            raise refuse_pair(plan, true)
        variant = (*fitting[:number], true[number], *fitting[number + 1 :])
        # Short inputs are not padded along this symbol, since padding would change the results: each such length is
        # compiled once.
        self._variants.add(variant)
        return self._answer_padded(call, feeds, true, variant)

    def _answer_large(
        self, call: _Call, feeds: Mapping[str, Any], true: Sizes, large: tuple[int, ...]
    ) -> list[Any]:
        plan = self._plan
        whole = [number for number in large if number not in plan.split]
        if not whole:
            number = large[0]
            axes = joints(plan, self._shapes, call.names, number)
            self._count("split")
            # `_answer` recursively, since the parts may still be too large along another symbol.
            part_of = dataclasses.replace(call, is_part=True)
            results = [self._answer(part_of, part) for part in parts(plan, feeds, number, true[number])]
            joined_results = joined(results, axes)
            self._compare_whole(call, feeds, joined_results)
            return joined_results
        if self._bucket_arguments.overflow == "cpu":
            larger = {plan.symbols[at]: sorted({*plan.buckets[at], true[at]}) for at in range(len(true))}
            fix = f"Create the session with buckets={larger!r} to run such calls on QNN"
            return self._answer_on_cpu(call, feeds, f"{plan.text(true)} does not fit into any bucket. {fix}")
        raise refuse_too_large(plan, true, whole[0])

    def _compare_whole(self, call: _Call, feeds: Mapping[str, Any], results: list[Any]) -> None:
        """Compare a call that ran in parts with the results of the CPU for the whole call."""
        if call.is_part:
            return
        compared = self._whole.wants(feeds.values())
        self._in_parts.calls += 1
        if compared:
            self._whole.compare_call(call.names, [(name, value, None) for name, value in feeds.items()], results)

    def _answer_on_cpu(self, call: _Call, feeds: Mapping[str, Any], because: str) -> list[Any]:
        """Run on the CPU. Warn and log once; `buckets` and `placement` report how often it happened."""
        # `_count` returns the new number under its lock, so exactly one thread warns.
        if self._count("on_cpu") == 1:
            label = self.recipe.label
            text = f"{label}: a call runs on the CPU, as overflow='cpu' allows: {because.rstrip('.')}."
            self.first.host.supervisor.counters.cpu_fallbacks += 1
            self._warn(text, CpuFallbackWarning, _log)
        return self._run_in(FREE, call, {**feeds, **self._free.constants}, FREE)

    def _run_in(self, variant: Sizes, call: _Call, feeds: Mapping[str, Any], true: Sizes) -> list[Any]:
        """Run in a variant. `true` are the sizes before padding."""
        # `get` may compile, which uses up a part of the call's time; the run gets the remaining time.
        how = call.how
        session = self._variants.get(variant, "call", call.deadline, how.on_deadline)
        left_s = seconds_left(call.deadline)
        run: Callable[..., list[Any]] = session.run_values if call.wire else session.run
        compared = not call.is_part and session.wants_comparison(feeds.values())
        if true != variant and self._windows is None:
            given = {name: unpadded(self._plan, name, value, true) for name, value in feeds.items()}
            compare = functools.partial(self._changed_by_padding, variant, left_s)
            self._padding.padded_call(variant, given, compare, again=compared)
        if compared:
            # Only the values that remain after cutting are compared with the CPU: the application never receives
            # the values that result from padding.
            counted = None if true == variant else self._counted(true, variant)
            run = functools.partial(session.run_values, compared=True, counted=counted)
        self._variants.count(variant)
        values = run(
            call.names, feeds, how.run_options, timeout=left_s, retry=how.retry, on_deadline=how.on_deadline
        )
        return [to_application(value) for value in values] if compared and not call.wire else values

    def _changed_by_padding(self, variant: Sizes, timeout_s: float | None, feeds: Mapping[str, Any]) -> str:
        """Return what padding to this variant changes in the CPU's results for these inputs; '' if nothing."""
        plan = dataclasses.replace(self._plan, buckets=tuple((size,) for size in variant), only=None)
        run_free = self._run_free(timeout_s)
        return worst_change(verify_padding(plan, self._shapes, self.output_names, [feeds], run_free, TOLERANCE))

    def _run_free(self, timeout_s: float | None) -> RunFree:
        deadline = deadline_after(self._timeout if timeout_s is None else timeout_s)

        def run(feeds: Mapping[str, Any]) -> list[Any]:
            free = self._variants.free(deadline)
            return free.run(self.output_names, {**feeds, **self._free.constants}, timeout=seconds_left(deadline))

        return run

    def _counted(self, true: Sizes, variant: Sizes) -> Counted:
        return lambda names, values: cut(self._plan, self._shapes, names, values, true, variant)

    def _sizes_of(self, feeds: Mapping[str, Any]) -> Sizes:
        names = self._plan.inputs
        return sizes_of(self._plan, {name: feeds[name].shape for name in names if feeds.get(name) is not None})

    def _count(self, what: str) -> int:
        with self._counting:
            self._counts[what] += 1
            return self._counts[what]

    # --- warm-up and verification -----------------------------------------------------------------------------

    def warm(
        self,
        sizes: Sequence[Mapping[str, int]] | None,
        workers: int,
        timeout: float | None,
        on_progress: Progress | None,
    ) -> BucketStatus:
        """Create variants, see `InferenceSession.warm`."""
        deadline = deadline_after(self._timeout if timeout is None else timeout)
        try:
            wanted = wanted_variants(self._plan, sizes)
            if sizes is None:
                wanted = [one for one in wanted if not self._is_ruled_out(one, deadline)]
            warm(self._variants, wanted, workers, deadline, on_progress)
            if self._bucket_arguments.overflow == "cpu":
                self._variants.free(deadline)
        except BridgeError as error:
            raise as_onnxruntime(error) from None
        return self.status()

    def _is_ruled_out(self, sizes: Sizes, deadline: float | None) -> bool:
        """Return whether the CPU refuses this combination of sizes, although it accepts that of the first
        variant."""
        first = self._plan.smallest()
        if len(self._plan.symbols) < 2 or sizes == first or not self._takes_zeros:
            return False
        try:
            for tried in (first, sizes):
                self._free.run(self._free.zeros(self._plan, tried), deadline)
        except OF_THE_MODEL as error:
            if tried == first:
                # The model refuses zeros even in the sizes of the first variant, so zeros show nothing.
                self._takes_zeros = False
                return False
            text = self._plan.text(sizes)
            self._ruled_out[text] = error.message
            _log.info("%s: the model rules out %s: %s", self.recipe.label, text, error.message)
            return True
        return False

    def verify_padding(
        self,
        feeds: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        tolerance: float | None,
        timeout: float | None,
    ) -> PaddingReport:
        """Compare results with and without padding, see `InferenceSession.verify_padding`."""
        limit = TOLERANCE if tolerance is None else tolerance
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit >= 0:
            raise OptionError(
                f"tolerance={tolerance!r} is not a tolerance.", fix="Give a number that is at least 0."
            )
        run_free = self._run_free(timeout)
        try:
            samples = [feeds] if isinstance(feeds, Mapping) else list(feeds)
            checked = [{name: value for name, value, _ in self.checker.check(sample)} for sample in samples]
            return verify_padding(self._plan, self._shapes, self.output_names, checked, run_free, limit)
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    # --- facts ---

    def status(self) -> BucketStatus:
        with self._counting:
            counts = self._counts.copy()
        variants = tuple(
            VariantStatus(
                sizes=self._plan.named(variant.sizes),
                made=variant.session is not None,
                made_at_call=variant.made_by == "call",
                seconds=variant.seconds,
                runs=variant.runs,
                placement=None if variant.session is None else variant.session.placement,
                cache=None if variant.session is None else variant.session.cache,
                verified=None if variant.session is None else variant.session.verified,
            )
            for variant in self._variants
        )
        return BucketStatus(
            variants,
            counts["calls"],
            counts["padded"],
            counts["split"],
            counts["on_cpu"],
            self._shapes.texts(),
            dict(self._shapes.uncut),
            chunked=counts["chunked"],
            ruled_out=dict(self._ruled_out),
            decided=self._decided,
            padding=self._padding.found,
        )

    def variants_text(self) -> str:
        """Return how many variants there are, and how many have been created."""
        made = [variant.session is not None for variant in self._variants]
        return f"{sum(made)} of {len(made)} buckets created"

    def placement(self) -> Placement:
        """Return the placement of the variant with the most nodes on the CPU.

        Its cause also reports calls that ran on the CPU because they were too large.
        """
        placements = [variant.session.placement for variant in self._variants if variant.session is not None]
        found = max(placements, key=lambda one: one.cpu_nodes)
        on_cpu = self._counts["on_cpu"]
        if not on_cpu:
            return found
        calls = f"{on_cpu} {'call' if on_cpu == 1 else 'calls'} that fit into no bucket ran on the CPU"
        return dataclasses.replace(found, cause=f"{found.cause}; {calls}" if found.cause else calls)

    def verified(self) -> NumbersReport:
        """Return the worst report of all variants: "differs" before unknown before "agrees".

        Padding that changes results is a difference, too: the variants alone do not notice it.
        """
        if self._padding.found and self.first.verified.state != "off":
            reason = f"padding changes results: {self._padding.found}"
            return NumbersReport("differs", reason=reason, when=time.time())
        reports = [variant.session.verified for variant in self._variants if variant.session is not None]
        reports.append(self._whole.report)
        # A report of a variant that has not run yet counts only if no variant has run.
        reports = [report for report in reports if report.reason != NOT_RUN] or reports
        return min(reports, key=lambda one: (WORST_FIRST.index(one.state), one.snr_db or 0.0))

    def verify(self, feeds: Mapping[str, Any] | None, timeout: float | None) -> NumbersReport:
        """Compare the results of `run` for these feeds with those of the CPU for the same, unpadded feeds.

        Without feeds, compare the first variant with generated inputs.
        """
        try:
            if feeds is None:
                return self.first.verify(None, timeout=timeout)
            checked = {name: value for name, value, _ in self.checker.check(feeds)}
            deadline = deadline_after(self._timeout if timeout is None else timeout)
            how = RunArguments(None, timeout, None, "raise")
            call = _Call(self.output_names, how, deadline, wire=True, is_part=True)
            results = self._answer(call, checked)
            given = [(name, value, None) for name, value in checked.items()]
            return self._whole.compare(
                self.output_names, given, results, seconds_left(deadline), "the inputs given"
            )
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    def generation(self) -> int:
        """Return the highest generation of all variants."""
        return max(session.generation for session in self._variants.made())

    # --- settings and closing ---

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Set options in all variants, including those that are created later."""
        self._variants.set_ep_dynamic_options(dict(options))

    def end_profiling(self) -> str:
        """End the profiles of all variants; return the path of the first variant's profile. The log has the
        others."""
        first, *others = [session.end_profiling() for session in self._variants.made()]
        for path in filter(None, others):
            _log.info("%s: the profile of another variant is %s", self.recipe.label, path)
        return first

    def close(self) -> None:
        """Close all variants. Idempotent."""
        self._variants.close()
