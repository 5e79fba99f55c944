"""`BucketedRunner`: run calls of any size on variants of the model that are compiled for a few sizes.

This is the `Runner` of an `InferenceSession` with ``buckets=``. A call is padded, runs in the smallest variant that
is large enough, and the padding is removed from its outputs. The smallest variant is created together with the
session. Thread-safe.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
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
from qnnbridge._buckets.rows import mixed_text
from qnnbridge._buckets.variants import FREE, BucketStatus, Progress, Variants, VariantStatus, opener, warm
from qnnbridge._callers import warn_application
from qnnbridge._options.providers import QNN
from qnnbridge._session.create import identify
from qnnbridge._session.numbers_check import NOT_RUN, NumbersCheck, WholeCalls, verify_mode
from qnnbridge._session.remote_runner import CpuFallbackWarning, Warn, check_outputs
from qnnbridge._supervision.host_process import deadline_after, seconds_left
from qnnbridge._supervision.retries import NO_LIMITS, CallLimits
from qnnbridge._values.feed_rules import INVALID_ARGUMENT
from qnnbridge._values.feeds import Counted, FeedChecker
from qnnbridge._values.ort_value import to_application
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import Lock
from qnnbridge_protocol.errors import InvalidArgument, OptionError
from qnnbridge_protocol.model_records import WORST_FIRST, NumbersReport
from qnnbridge_protocol.specs import Placement
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge._fastpath.call import Names, OutputPlacement
    from qnnbridge._host import Host
    from qnnbridge._session import SessionRecipe
    from qnnbridge._values.ort_value import OrtValue
    from qnnbridge_protocol.model_records import ModelDescription

_log = log_of("qnnbridge.buckets")


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """Settings that all parts of a call share.

    Attributes:
        names: names of the requested outputs.
        limits: limits of the call; `deadline` is computed from its timeout.
        wire: whether to return the outputs as the host sends them, without converting them for the application.
        is_part: whether the call is a part of another call. Only the whole call is compared with the CPU.
    """

    names: list[str]
    run_options: Any
    limits: CallLimits
    deadline: float | None
    wire: bool
    is_part: bool = False


@dataclasses.dataclass(slots=True)
class _CallsInParts:
    """Counter of calls that run in windows or in parts."""

    calls: int = 0


class BucketedRunner:
    """Run the calls of an `InferenceSession` with ``buckets=`` in its variants.

    Args:
        retry: how often a call that may have crashed the host is repeated in a new host.
        creation: time limit and number of repetitions of the creation.
        timeout: the default time limit of calls, in seconds.
        warn: function that warns the application about calls and variants that run on the CPU.
    """

    def __init__(
        self,
        recipe: SessionRecipe,
        arguments: BucketArguments,
        host: Host,
        retry: int,
        creation: CallLimits,
        timeout: float | None,
        warn: Warn = warn_application,
    ) -> None:
        self._bucket_arguments, self._timeout, self._warn = arguments, timeout, warn
        # Counters of `BucketStatus` by name.
        self._counts: collections.Counter[str] = collections.Counter()
        self._counting = renew_in_forks(Lock())
        self._ruled_out: dict[str, str] = {}
        deadline = deadline_after(creation.timeout)
        # The host reads the model's inputs without loading the model, so the application does not need the package
        # onnx.
        model = identify(host, recipe, deadline, operators=True)
        recipe = dataclasses.replace(recipe, identity=model.model)
        declared, (recipe, named) = model.inputs, name_axes(recipe, model.inputs, arguments.sizes)
        self._recipe, model = recipe, dataclasses.replace(model, inputs=named)
        self._mode = verify_mode(recipe.verify) if self._asks_for_qnn else "off"
        self._padding = PaddingCheck(recipe.label, self._mode)
        constants, model = without_constants(recipe.spec, model)
        plan, decides = self._plan_of_trials(arguments, recipe, model)
        self._decided = ""
        self._variants = variants = Variants(plan, recipe, opener(host, retry, timeout, warn))
        self._free = free = FreeModel(variants, model, constants)
        try:
            mixed = free.mixed_rows(deadline)
            if mixed and arguments.by_name:
                _log.info("%s: %s, so calls are not divided", recipe.label, mixed_text(mixed))
                self._bucket_arguments = arguments = dataclasses.replace(arguments, split=arguments.split - mixed)
                plan, decides = self._plan_of_trials(arguments, recipe, model)
                variants.plan = plan
            elif mixed:
                self._padding.report(mixed_text(mixed))
            if decides:
                self._shapes = free.shapes(arguments, deadline)
                arguments, self._decided = free.decide(arguments, self._shapes, deadline, mixed)
                _log.info("%s: padding is not specified; chosen: %s", recipe.label, self._decided)
                self._bucket_arguments = arguments
                variants.plan = plan = make_plan(arguments, model, recipe.label)
            self._plan = plan
            # Compile the smallest variant now: if QNN refuses the model, the error is raised when the session is
            # created and not at the first call.
            self._first = variants.get(plan.smallest(), "open", deadline, creation.on_deadline)
            if not decides:
                self._shapes = free.shapes(arguments, deadline)
            self._windows: Windowing | None = None
            if not decides and self._tries_padding(arguments):
                self._padding.report(free.changes_of_padding(self._shapes, deadline))
            if plan.chunk is not None:
                context = arguments.chunk[plan.symbols[plan.chunk]]
                self._windows = free.windows(self._shapes, context, deadline)
        except BaseException:
            # Close the sessions created so far, which would otherwise remain in the host until this process ends.
            variants.close()
            raise
        self.remote = self._first.remote
        self._takes_zeros = True
        self._in_parts = _CallsInParts()
        whole = WholeCalls(
            dataclasses.replace(recipe.spec, fix=None), self._parts_text(), constants, self._in_parts
        )
        self._whole = NumbersCheck(self.remote, self._mode, whole)
        fixed = recipe.spec.free_dimensions_by_name
        self.inputs = shown_inputs([node for node in declared if node.name not in constants], fixed)
        self.outputs = shown_outputs(model.outputs, self._shapes, fixed)
        self.overridable = self.remote.info.overridable_initializers
        self.output_names = [node.name for node in self.outputs]
        self.checker = FeedChecker(self.inputs, self.overridable)

    def _plan_of_trials(
        self, arguments: BucketArguments, recipe: SessionRecipe, model: ModelDescription
    ) -> tuple[BucketPlan, bool]:
        """Return the plan for the first trials, and whether the session must choose the padding.

        If the application does not specify padding, `FreeModel.decide` chooses one by runs on the CPU with free
        sizes. Zeros are tried first, so the first plan pads with zeros.
        """
        decides = lacks_padding(arguments, model, recipe.label)
        planned = dataclasses.replace(arguments, pad_all=0, decided=True) if decides else arguments
        return self._planned(planned, recipe, model), decides

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
        """Return whether to test the padding: only for sessions on QNN for which the application chose the padding.

        The padding is tested even for variants from the cache, which does not record the effect of padding.
        """
        chosen = bool(arguments.pad) or arguments.pad_all is not None
        return self._asks_for_qnn and chosen and not arguments.chunk

    def _parts_text(self) -> str:
        """Return a string that describes how calls are divided and how the model is rewritten. The division and the
        rewrites affect the results, so a stored verdict applies only to an equal string."""
        plan, windowing, fix = self._plan, self._windows, self.recipe.spec.fix
        text = f"buckets {plan.symbols} {plan.buckets} split {sorted(plan.split)} fix {fix}"
        return text if windowing is None else f"{text} windows {windowing.number} {windowing.context}"

    @property
    def _asks_for_qnn(self) -> bool:
        providers = self.recipe.spec.providers
        return not providers or any(provider.name == QNN for provider in providers)

    # --- runs ---

    def run(
        self,
        names: Names,
        feed: Mapping[str, Any],
        run_options: Any,
        limits: CallLimits,
        memory: OutputPlacement | None = None,
    ) -> list[Any]:
        """Return the outputs. The first call of a size without a variant waits until the variant is compiled."""
        # Ignore `memory`, which requests outputs in shared memory: cutting the padding copies the outputs anyway.
        return self._run(names, feed, run_options, limits, wire=False)

    def run_values(self, names: Names, feed: Mapping[str, Any], run_options: Any, limits: CallLimits) -> list[Any]:
        return self._run(names, feed, run_options, limits, wire=True)

    def run_bound(
        self,
        names: tuple[str, ...],
        inputs: Mapping[str, OrtValue],
        outputs: Sequence[OrtValue | None],
        run_options: Any,
        limits: CallLimits,
    ) -> list[Any]:
        """Run the model with bound inputs. The binding copies the results into `outputs`."""
        return self._run(names, self.checker.complete(inputs), run_options, limits, wire=True)

    def _run(
        self, names: Names, feed: Mapping[str, Any], run_options: Any, limits: CallLimits, *, wire: bool
    ) -> list[Any]:
        checked = self.checker.check(feed)
        self.checker.refuse_missing(checked)
        feeds = {name: value for name, value, _ in checked}
        wanted = check_outputs(names, self.output_names) or self.output_names
        deadline = deadline_after(self._timeout if limits.timeout is None else limits.timeout)
        self._count("calls")
        return self._answer(_Call(wanted, run_options, limits, deadline, wire), feeds)

    def _answer(self, call: _Call, feeds: Mapping[str, Any]) -> list[Any]:
        plan = self._plan
        try:
            true = self._sizes_of(feeds)
        except InvalidArgument as error:
            # The inputs have different sizes for one dimension, so they cannot be padded. With overflow="cpu", the
            # call runs on the CPU, and ONNX Runtime decides whether the sizes are an error.
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
        return cut(self._plan, self._shapes, call.names, values, true, variant)

    def _answer_windows(
        self, call: _Call, feeds: Mapping[str, Any], true: Sizes, windowing: Windowing
    ) -> list[Any]:
        """Run a call in overlapping windows along the chunked dimension. Pad the other dimensions."""
        number, context = windowing.number, windowing.context
        size = true[number]
        # If no bucket is short enough, use one window of the exact size, so that nothing is padded.
        length = window_length(self._plan.buckets[number], size, context) or size
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
        """Run one window in the variant with its length. If the length is not a bucket, create a variant for it."""
        plan = self._plan
        true = self._sizes_of(feeds)
        smallest = (*true[:number], plan.buckets[number][0], *true[number + 1 :])
        fitting = variant_for(plan, true if true[number] in plan.buckets[number] else smallest)
        if fitting is None:
            raise refuse_pair(plan, true)
        variant = (*fitting[:number], true[number], *fitting[number + 1 :])
        # Do not pad short inputs along this dimension: padding would change the results. Add a variant.
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
            # Call `_answer` recursively, because the parts may still be too large along another dimension.
            part_of = dataclasses.replace(call, is_part=True)
            results = [self._answer(part_of, part) for part in parts(plan, feeds, number, true[number])]
            joined_results = joined(results, axes)
            self._compare_whole(call, feeds, joined_results)
            return joined_results
        if self._bucket_arguments.overflow == "cpu":
            larger = {plan.symbols[at]: sorted({*plan.buckets[at], true[at]}) for at in range(len(true))}
            fix = f"Create the session with buckets={larger!r} to run calls of this size on QNN"
            return self._answer_on_cpu(call, feeds, f"{plan.text(true)} does not fit into any bucket. {fix}")
        raise refuse_too_large(plan, true, whole[0])

    def _compare_whole(self, call: _Call, feeds: Mapping[str, Any], results: list[Any]) -> None:
        """Compare a call that ran in parts with the CPU's results for the whole call."""
        if call.is_part:
            return
        compared = self._whole.wants(feeds.values())
        self._in_parts.calls += 1
        if compared:
            self._whole.compare_call(call.names, [(name, value, None) for name, value in feeds.items()], results)

    def _answer_on_cpu(self, call: _Call, feeds: Mapping[str, Any], because: str) -> list[Any]:
        """Run a call on the CPU. Warn and log only once; `buckets` and `placement` report the number of such
        calls."""
        # `_count` returns the new number under its lock, so only one thread warns.
        if self._count("on_cpu") == 1:
            label = self.recipe.label
            text = f"{label}: a call runs on the CPU, as overflow='cpu' allows: {because.rstrip('.')}."
            self.remote.host.supervisor.counters.cpu_fallbacks += 1
            self._warn(text, CpuFallbackWarning, _log)
        return self._run_in(FREE, call, {**feeds, **self._free.constants}, FREE)

    def _run_in(self, variant: Sizes, call: _Call, feeds: Mapping[str, Any], true: Sizes) -> list[Any]:
        """Run a call in a variant. `true` contains the sizes before padding."""
        # Compute the remaining time after `get`, which may compile the variant.
        runner = self._variants.get(variant, "call", call.deadline, call.limits.on_deadline)
        left_s = seconds_left(call.deadline)
        looked_at = not call.is_part and runner.wants_comparison(feeds.values())
        if true != variant and self._windows is None:
            given = {name: unpadded(self._plan, name, value, true) for name, value in feeds.items()}
            compare = functools.partial(self._changed_by_padding, variant, left_s)
            self._padding.padded_call(variant, given, compare, again=looked_at)
        self._variants.count(variant)
        names, limits = tuple(call.names), call.limits._replace(timeout=left_s)
        if looked_at:
            # Compare only the values that remain after cutting: the application does not receive the cut values.
            counted = None if true == variant else self._counted(true, variant)
            values = runner.run_values(names, feeds, call.run_options, limits, compared=True, counted=counted)
            return values if call.wire else [to_application(value) for value in values]
        run = runner.run_values if call.wire else runner.run
        return run(names, feeds, call.run_options, limits)

    def _changed_by_padding(self, variant: Sizes, timeout_s: float | None, feeds: Mapping[str, Any]) -> str:
        """Describe how padding to this variant changes the CPU's results for these inputs; '' if it does not."""
        plan = dataclasses.replace(self._plan, buckets=tuple((size,) for size in variant), only=None)
        run_free = self._run_free(timeout_s)
        return worst_change(verify_padding(plan, self._shapes, self.output_names, [feeds], run_free, TOLERANCE))

    def _run_free(self, timeout_s: float | None) -> RunFree:
        deadline = deadline_after(self._timeout if timeout_s is None else timeout_s)

        def run(feeds: Mapping[str, Any]) -> list[Any]:
            free, limits = self._variants.free(deadline), CallLimits(seconds_left(deadline))
            return free.run(tuple(self.output_names), {**feeds, **self._free.constants}, None, limits)

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
        """Create variants in advance; see `InferenceSession.warm`."""
        deadline = deadline_after(self._timeout if timeout is None else timeout)
        wanted = wanted_variants(self._plan, sizes)
        if sizes is None:
            wanted = [one for one in wanted if not self._is_ruled_out(one, deadline)]
        warm(self._variants, wanted, workers, deadline, on_progress)
        if self._bucket_arguments.overflow == "cpu":
            self._variants.free(deadline)
        return self.status()

    def _is_ruled_out(self, sizes: Sizes, deadline: float | None) -> bool:
        """Return whether the CPU refuses these sizes, but accepts the sizes of the first variant."""
        first = self._plan.smallest()
        if len(self._plan.symbols) < 2 or sizes == first or not self._takes_zeros:
            return False
        try:
            for tried in (first, sizes):
                self._free.run(self._free.zeros(self._plan, tried), deadline)
        except OF_THE_MODEL as error:
            if tried == first:
                # The model refuses zeros even with the first variant's sizes, so zeros cannot test any combination.
                self._takes_zeros = False
                return False
            text = self._plan.text(sizes)
            self._ruled_out[text] = error.message
            _log.info("%s: the model does not accept the sizes %s: %s", self.recipe.label, text, error.message)
            return True
        return False

    def verify_padding(
        self,
        feeds: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        tolerance: float | None,
        timeout: float | None,
    ) -> PaddingReport:
        """Compare results with and without padding; see `InferenceSession.verify_padding`."""
        limit = TOLERANCE if tolerance is None else tolerance
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit >= 0:
            raise OptionError(f"tolerance={tolerance!r} is not a tolerance.", fix="Give a number, 0 or larger.")
        run_free = self._run_free(timeout)
        samples = [feeds] if isinstance(feeds, Mapping) else list(feeds)
        checked = [{name: value for name, value, _ in self.checker.check(sample)} for sample in samples]
        return verify_padding(self._plan, self._shapes, self.output_names, checked, run_free, limit)

    # --- information ---

    def announce(self, session: object) -> None:
        """Do nothing: each variant was reported to `remote_runner.watchers` when it was created."""

    @property
    def recipe(self) -> SessionRecipe:
        return self._recipe

    def status(self) -> BucketStatus:
        with self._counting:
            counts = self._counts.copy()
        variants = tuple(
            VariantStatus(
                sizes=self._plan.named(variant.sizes),
                made=variant.runner is not None,
                made_at_call=variant.made_by == "call",
                seconds=variant.seconds,
                runs=variant.runs,
                placement=None if variant.runner is None else variant.runner.placement,
                cache=None if variant.runner is None else variant.runner.remote.cache_status,
                verified=None if variant.runner is None else variant.runner.verified,
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
        """Return the number of variants, and how many of them have been created."""
        made = [variant.runner is not None for variant in self._variants]
        return f"{sum(made)} of {len(made)} buckets created"

    @property
    def placement(self) -> Placement:
        """Placement of the variant with the most nodes on the CPU.

        The cause in the result also mentions calls that ran on the CPU because they were too large.
        """
        placements = [variant.runner.placement for variant in self._variants if variant.runner is not None]
        found = max(placements, key=lambda one: one.cpu_nodes)
        on_cpu = self._counts["on_cpu"]
        if not on_cpu:
            return found
        calls = f"{on_cpu} {'call' if on_cpu == 1 else 'calls'} that fit into no bucket ran on the CPU"
        return dataclasses.replace(found, cause=f"{found.cause}; {calls}" if found.cause else calls)

    @property
    def verified(self) -> NumbersReport:
        """The worst report of all variants: "differs" before "unknown" before "agrees". If padding changes the
        results, the state is "differs", too: the report of a variant cannot show this, because the CPU gets the
        same padded inputs."""
        if self._padding.found and self._first.verified.state != "off":
            reason = f"padding changes results: {self._padding.found}"
            return NumbersReport("differs", reason=reason, when=time.time())
        reports = [variant.runner.verified for variant in self._variants if variant.runner is not None]
        reports.append(self._whole.report)
        # Ignore reports of variants that have not run yet, unless no variant has run.
        reports = [report for report in reports if report.reason != NOT_RUN] or reports
        return min(reports, key=lambda one: (WORST_FIRST.index(one.state), one.snr_db or 0.0))

    def verify(self, input_feed: Mapping[str, Any] | None, timeout: float | None) -> NumbersReport:
        """Compare the results of `run` for these feeds with the CPU's results for the same feeds without padding.

        Without feeds, compare the first variant with generated inputs.
        """
        if input_feed is None:
            return self._first.verify(None, timeout)
        checked = {name: value for name, value, _ in self.checker.check(input_feed)}
        deadline = deadline_after(self._timeout if timeout is None else timeout)
        call = _Call(self.output_names, None, NO_LIMITS, deadline, wire=True, is_part=True)
        results = self._answer(call, checked)
        given = [(name, value, None) for name, value in checked.items()]
        return self._whole.compare(self.output_names, given, results, seconds_left(deadline), "the inputs given")

    @property
    def generation(self) -> int:
        """Number of the latest host process in which a variant was created."""
        return max(runner.generation for runner in self._variants.made())

    # --- settings and closing ---

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Set options in all variants, including those that are created later."""
        self._variants.set_ep_dynamic_options(dict(options))

    def end_profiling(self) -> str:
        """End the profiles of all variants and return the path of the first profile. The log contains the paths
        of the other profiles."""
        first, *others = [runner.end_profiling() for runner in self._variants.made()]
        for path in filter(None, others):
            _log.info("%s: the profile of another variant is %s", self.recipe.label, path)
        return first

    def close(self) -> None:
        """Close all variants. Idempotent."""
        self._variants.close()
