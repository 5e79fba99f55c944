"""`RemoteRunner`: run calls in one session in the host, on the fast path if possible; compare results with the
CPU's.

An `InferenceSession` without buckets uses one `RemoteRunner`; a session with buckets uses one for each variant. Any
thread may call the methods.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from qnnbridge._callers import warn_application
from qnnbridge._session.remote_session import RemoteSession
from qnnbridge._session.runs import coerce_run_options
from qnnbridge._supervision.host_process import FastCallFailed, seconds_left
from qnnbridge._supervision.retries import NO_LIMITS, CallLimits
from qnnbridge._threads import refuse_at_the_end
from qnnbridge_protocol.errors import BridgeError, DeadlineExceeded, InvalidArgument, OptionError, StateLost
from qnnbridge_protocol.shown import more
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge._fastpath.call import Names, OutputPlacement
    from qnnbridge._host import Host
    from qnnbridge._session import SessionRecipe
    from qnnbridge._session.numbers_check import NumbersCheck
    from qnnbridge._session.runs import RunOptions
    from qnnbridge._values.feeds import Counted
    from qnnbridge._values.ort_value import OrtValue
    from qnnbridge_protocol.model_records import NumbersReport
    from qnnbridge_protocol.shown import Fact
    from qnnbridge_protocol.specs import Placement


_log = log_of("qnnbridge.session")


class CpuFallbackWarning(UserWarning):
    """Warning that a session that requested QNN runs on the CPU, as its ``fallback`` option allows."""


# Function that warns the application. Arguments: text, category, and the logger that also receives the text.
Warn = Callable[[str, type[Warning], logging.Logger], None]

# Functions that are called for each created session, with the session and its runner as arguments. For a variant of
# a session with buckets, both arguments are the runner of the variant. `qnnbridge.testing` uses this list.
watchers: list[Callable[[Any, RemoteRunner], None]] = []


class RemoteRunner:
    """Run the calls of one session in the host.

    Args:
        retry: how often a call is repeated in a new host if the host dies during the call.
        creation: limits for creating the session: time limit and number of repetitions.
        timeout: the default time limit of calls, in seconds.
        warn: warns the application that the session runs on the CPU.
        chooses_calls: whether the runner chooses the calls that are compared with the CPU. ``False`` for a variant
            of a session with buckets: the session changes the outputs first, and chooses the calls itself.
    """

    def __init__(
        self,
        host: Host,
        recipe: SessionRecipe,
        retry: int,
        creation: CallLimits,
        timeout: float | None,
        warn: Warn = warn_application,
        *,
        chooses_calls: bool = True,
    ) -> None:
        self._timeout = timeout
        self._chooses_calls = chooses_calls
        self.remote = remote = RemoteSession(
            host, recipe, retry=retry, timeout_s=creation.timeout, while_busy=_load_modules_of_runs
        )
        info = remote.open(creation.timeout, creation.on_deadline)
        remote.timeout_s = timeout
        # `_load_modules_of_runs` has already imported these modules, while the host created the session. An import
        # at the top of this file would delay the creation.
        from qnnbridge._fastpath.call import KnownCalls
        from qnnbridge._session.fast_calls import run
        from qnnbridge._values.feeds import FeedChecker

        self._run_fast = run
        self.inputs, self.outputs, self.overridable = info.inputs, info.outputs, info.overridable_initializers
        self.checker = FeedChecker(info.inputs, info.overridable_initializers)
        self.output_names = [node.name for node in info.outputs]
        self._known = KnownCalls(self.output_names)
        # ``None`` if results are not compared (verify="off").
        self._numbers: NumbersCheck | None = None
        if recipe.verify != "off":
            from qnnbridge._session.numbers_check import NumbersCheck, verify_mode

            self._numbers = NumbersCheck(remote, verify_mode(recipe.verify))
            remote.wants_comparison = self._numbers.wants if chooses_calls else None
            try:
                self._numbers.report_earlier_difference()
            except BridgeError:
                remote.close()
                raise
        self._warn_of_placement(warn)

    def _warn_of_placement(self, warn: Warn) -> None:
        remote, recipe, placement = self.remote, self.remote.recipe, self.remote.info.placement
        if placement.backend not in ("", "htp"):
            from qnnbridge_protocol.config_keys import BACKENDS_WITHOUT_RESULTS

            no_results = BACKENDS_WITHOUT_RESULTS.get(placement.backend)
            if no_results is not None:
                warn_application(f"{recipe.label}: {no_results}", RuntimeWarning)
        # If fallback="cpu" and QNN accepted no node, count the session, log it and warn. Do nothing if the host
        # could not determine the placement (`known` is false).
        if recipe.spec.fallback == "cpu" and placement.known and not placement.qnn_nodes and placement.backend:
            text = f"{recipe.label} runs on the CPU: QNN accepted none of its nodes"
            text += f" ({placement.cause.rstrip('.')})." if placement.cause else "."
            command = recipe.command("analyze")
            text += f" `{command}` shows the reason for each node." if command else ""
            if not remote.moved:  # a session that moved to the CPU was counted when it moved
                remote.host.supervisor.counters.cpu_fallbacks += 1
            warn(text, CpuFallbackWarning, _log)

    def announce(self, session: object) -> None:
        for watch in watchers:
            watch(session, self)

    # --- information ---

    @property
    def recipe(self) -> SessionRecipe:
        return self.remote.recipe

    @property
    def generation(self) -> int:
        return self.remote.generation

    @property
    def placement(self) -> Placement:
        return self.remote.info.placement

    @property
    def verified(self) -> NumbersReport:
        """Report on whether the session's results agree with the CPU's."""
        if self._numbers is not None:
            return self._numbers.report
        from qnnbridge_protocol.model_records import NumbersReport

        return NumbersReport("off", reason="verify='off'")

    def status(self) -> None:
        return None

    def variants_text(self) -> str:
        return ""

    # --- comparison with the CPU ---

    def compare_first_calls(self) -> None:
        """Compare the first calls with the CPU before they return, even if a verdict is known. Used by tests."""
        from qnnbridge._session.numbers_check import NumbersCheck

        self._numbers = check = NumbersCheck(self.remote, "raise", ignore_kept=True)
        self.remote.wants_comparison = check.wants if self._chooses_calls else None

    def verify_ahead(self, deadline: float | None) -> None:
        """Run the session and the CPU with generated inputs and compare the results. Do nothing if a verdict is
        known or inputs cannot be generated.

        Raise `NumbersDiffer` for ``verify="raise"`` if the results differ.
        """
        check = self._numbers
        if check is None or not check.is_open:
            return
        left_s = seconds_left(deadline)
        try:
            feeds = self.checker.check(check.samples(left_s))
        # `samples` raises `OptionError` for inputs that cannot be generated, such as strings or free dimensions.
        except OptionError:
            return  # the first call of the application is compared later
        results = self.remote.run(None, feeds, None, CallLimits(left_s, self.remote.retry))
        self.remote.calls += 1
        check.compare_call(self.output_names, feeds, results, ahead=True)

    def wants_comparison(self, values: Iterable[Any]) -> bool:
        """Return whether to compare a call with the CPU. `values` contains the inputs of the call."""
        return self._numbers is not None and self._numbers.wants(values)

    def verify(self, input_feed: Mapping[str, Any] | None, timeout: float | None) -> NumbersReport:
        """Run the model in this session and on the CPU, compare the outputs, and store the report for
        `verified`."""
        from qnnbridge._session.numbers_check import NumbersCheck
        from qnnbridge_protocol.model_records import MADE_UP

        limits = CallLimits(timeout).within(self._timeout, self.remote.retry)
        check = self._numbers or NumbersCheck(self.remote, "off")
        given = "the inputs given" if input_feed is not None else MADE_UP
        feeds = self.checker.check(check.samples(limits.timeout) if input_feed is None else input_feed)
        results = self.remote.run(None, feeds, None, limits)
        self.remote.calls += 1
        self._numbers = check
        return check.compare(self.output_names, feeds, results, limits.timeout, given)

    # --- runs ---

    def run(
        self,
        names: Names,
        feed: Mapping[str, Any],
        run_options: RunOptions | Any,
        limits: CallLimits,
        memory: OutputPlacement | None = None,
    ) -> list[Any]:
        remote, failed = self.remote, None
        # A plan of the fast path has no run options (tags, `terminate`, profiling), so a call with options takes
        # the slow path.
        if run_options is None and feed.__class__ is dict and (limits is NO_LIMITS or remote.may_be_fast(limits)):
            timeout = self._timeout if limits.timeout is None else limits.timeout
            try:
                results = self._run_fast(remote, self._known.find, names, feed, timeout, memory)
                if results is not None:
                    return results
            # Leave the `except` block before the slow path starts: otherwise the exception would keep the call's
            # arrays alive until the repetition has ended.
            except FastCallFailed as failure:
                failed = failure.without_traceback()
            if failed is not None:
                remote.refuse_repetition(failed)
        refuse_at_the_end()
        from qnnbridge._values.ort_value import to_application

        values = self.run_values(names, feed, run_options, limits, failed=failed)
        if run_options is None and feed.__class__ is dict and remote.host.sharing.why_not is None:
            # Learn the signature only after the slow path has checked and computed the call. `dict(feed)` is a
            # copy, because another thread may change the application's dict.
            self._known.learn(names, dict(feed), values)
        return [to_application(value) for value in values]

    def run_bound(
        self,
        names: tuple[str, ...],
        inputs: Mapping[str, OrtValue],
        outputs: Sequence[OrtValue | None],
        run_options: RunOptions | Any,
        limits: CallLimits,
    ) -> list[Any]:
        from qnnbridge._io_binding import BoundValues

        if run_options is not None:
            return self.run_values(names, self.checker.complete(inputs), run_options, limits)
        failed = None
        bound = BoundValues(self.remote.host, inputs, outputs)
        try:
            results = None
            if self.remote.may_be_fast(limits):
                timeout = self._timeout if limits.timeout is None else limits.timeout
                try:
                    results = self._run_fast(self.remote, self._known.find, names, bound.feed, timeout, bound.out)
                except FastCallFailed as failure:
                    failed = failure.without_traceback()
                if failed is not None:
                    self.remote.refuse_repetition(failed)
            if results is None:
                results = self.run_values(names, self.checker.complete(inputs), None, limits, failed=failed)
                self._known.learn(names, bound.feed, results)
            return results
        except (StateLost, DeadlineExceeded) as error:
            if failed is None or failed.in_place:
                bound.lose(error)
            raise

    def run_values(
        self,
        names: Names,
        feed: Mapping[str, Any],
        run_options: RunOptions | Any,
        limits: CallLimits,
        *,
        failed: FastCallFailed | None = None,
        compared: bool | None = None,
        counted: Counted | None = None,
    ) -> list[Any]:
        """Return the outputs as the host sends them (`Typed` objects for types unknown to numpy).

        Args:
            failed: the failed attempt on the fast path; this call repeats it on the slow path.
            compared: whether to compare the call with the CPU; default: the session decides.
            counted: function that removes the part of the outputs that results from padding; default: keep
                everything.
        """
        remote = self.remote
        feeds = self.checker.check(feed)
        wanted = check_outputs(names, self.output_names)
        if remote.info.placement.qnn_nodes:
            # QNN does not detect a missing input, so check the inputs here. If QNN runs no node, ONNX Runtime
            # raises its own error, which applications expect.
            self.checker.refuse_missing(feeds)
        options = None if run_options is None else coerce_run_options(run_options)
        values = remote.run(
            wanted,
            feeds,
            None if options is None else options.to_spec(),
            limits.within(self._timeout, remote.retry),
            stop=options,
            failed=failed,
        )
        check = self._numbers
        if compared is None and check is not None:
            compared = self._chooses_calls and check.wants(value for _, value, _ in feeds)
        remote.calls += 1
        if compared and check is not None:
            check.compare_call(wanted or self.output_names, feeds, values, counted=counted)
        return values

    # --- available only with buckets ---

    def warm(self, *_: object) -> NoReturn:
        raise _no_buckets("warm()")

    def verify_padding(self, *_: object) -> NoReturn:
        raise _no_buckets("verify_padding()")

    # --- settings and closing ---

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        self.remote.set_ep_dynamic_options(dict(options))

    def end_profiling(self) -> str:
        return self.remote.end_profiling()

    def close(self) -> None:
        # Forget the calls first, so that calls in other threads take the slow path, and release the session last.
        self._known.forget()
        self.remote.close()


def _no_buckets(what: str) -> OptionError:
    return OptionError(
        f"{what} requires buckets=.",
        fix="Create the session with buckets: InferenceSession(model, buckets={'seq': [16, 32, 64, 128]}, pad=0).",
    )


def shown_facts(
    remote: RemoteSession, placement: Placement, variants: str, verified: NumbersReport
) -> Iterator[Fact]:
    """Yield the facts that the `repr` of a session shows, without a request to the host. variants: description of
    the session's buckets."""
    if remote.closed:
        yield "closed", ""
    yield from placement._shown_facts()
    if variants:
        yield variants, ""
    yield from remote.cache_status._shown_facts()
    if verified.state != "off":
        yield from verified._shown_facts()
    yield from more(remote.fixed)


# Modules that a session needs only after its creation: to run the model, and to explain the death of a host.
_MODULES_OF_RUNS = (
    *("difflib", "hashlib", "secrets", "platformdirs", "psutil"),
    *("qnnbridge._diagnosis.crash", "qnnbridge._diagnosis.ort_log", "qnnbridge._fastpath.channel_pool"),
    *(
        "qnnbridge._values.feeds",
        "qnnbridge._io_binding",
        "qnnbridge._values.ort_value",
        "qnnbridge._session.fast_calls",
    ),
    *(
        "qnnbridge._session.numbers_check",
        "qnnbridge_os.files",
        "qnnbridge_os.sharing",
        "qnnbridge_protocol.values",
    ),
)


def _load_modules_of_runs() -> None:
    """Import all modules that a session needs later, while the host creates the session.

    So no run waits for an import, and a program may drop its privileges or change its root folder (`os.chroot`)
    after it has created its sessions.
    """
    for name in _MODULES_OF_RUNS:
        importlib.import_module(name)


def check_outputs(wanted: Sequence[str] | None, known: Sequence[str]) -> list[str] | None:
    """Return the names of the requested outputs; ``None`` for all. Raise `InvalidArgument` for an unknown name."""
    if wanted is None:
        return None
    names = list(wanted)
    if not names:  # the application passed an empty generator
        raise InvalidArgument(
            "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : At least one output should be requested."
        )
    for name in names:
        if name not in known:
            raise InvalidArgument(
                f"[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Invalid output name:{name}",
                fix=f"The model's outputs are {', '.join(known)}.",
            )
    return names
