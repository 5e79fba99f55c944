"""`RemoteRunner`: runs calls in one session of the host, with its fast path and the comparison of its numbers.

The `Runner` of an `InferenceSession` without buckets. A session with buckets has one for each variant. Any thread.
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
    from qnnbridge._fastpath.call import Names, Wish
    from qnnbridge._feeds import Counted
    from qnnbridge._host import Host
    from qnnbridge._ort_value import OrtValue
    from qnnbridge._session import SessionRecipe
    from qnnbridge._session.numbers_check import NumbersCheck
    from qnnbridge._session.runs import RunOptions
    from qnnbridge_protocol.model_records import NumbersReport
    from qnnbridge_protocol.shown import Fact
    from qnnbridge_protocol.specs import Placement


_log = log_of("qnnbridge.session")


class CpuFallbackWarning(UserWarning):
    """A session that requested QNN runs on the CPU, as its ``fallback`` allows."""


# Warns the application: text, category, and the log that gets the text, too.
Warn = Callable[[str, type[Warning], logging.Logger], None]

# Called with each session that has been created and its runner; for a session with buckets with each variant, which
# is its own runner (`qnnbridge.testing`).
watchers: list[Callable[[Any, RemoteRunner], None]] = []


class RemoteRunner:
    """One session of the host.

    Args:
        retry: how often a call is repeated in a new host when the host dies under it.
        creation: limits of the creation.
        timeout: seconds, the default for calls.
        warn: warns the application that the session runs on the CPU.
        chooses_calls: whether it chooses the calls that are compared with the CPU. Otherwise its owner does, which
            compares what the application gets.
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
        # Imported while the host made the session: at the start of the creation they would delay it.
        from qnnbridge._fastpath.call import KnownCalls
        from qnnbridge._feeds import FeedChecker
        from qnnbridge._session.fast_calls import run

        self._run_fast = run
        self.inputs, self.outputs, self.overridable = info.inputs, info.outputs, info.overridable_initializers
        self.checker = FeedChecker(info.inputs, info.overridable_initializers)
        self.output_names = [node.name for node in info.outputs]
        self._known = KnownCalls(self.output_names)
        # ``None`` without a comparison (verify="off").
        self._numbers: NumbersCheck | None = None
        if recipe.verify != "off":
            from qnnbridge._session.numbers_check import NumbersCheck, verify_mode

            self._numbers = NumbersCheck(remote, verify_mode(recipe.verify))
            remote.wants_comparison = self._numbers.wants if chooses_calls else None
            try:
                self._numbers.known_before()
            except BridgeError:
                remote.close()
                raise
        self._warn_of_placement(warn)

    def _warn_of_placement(self, warn: Warn) -> None:
        remote, recipe, placement = self.remote, self.remote.recipe, self.remote.info.placement
        if placement.backend not in ("", "htp"):  # these two need no further module
            from qnnbridge_protocol.config_keys import BACKENDS_WITHOUT_RESULTS

            no_results = BACKENDS_WITHOUT_RESULTS.get(placement.backend)
            if no_results is not None:
                warn_application(f"{recipe.label}: {no_results}", RuntimeWarning)
        # No CPU by accident: with fallback="cpu" a session in which QNN took no node is counted, logged and
        # warned of. A host whose placement is not known (`known`) proves nothing in either direction.
        if recipe.spec.fallback == "cpu" and placement.known and not placement.qnn_nodes and placement.backend:
            text = f"{recipe.label} runs on the CPU: no node of it could be placed on QNN"
            text += f" ({placement.cause.rstrip('.')})." if placement.cause else "."
            command = recipe.command("analyze")
            text += f" `{command}` names the reason for each node." if command else ""
            if not remote.moved:  # that was counted
                remote.host.supervisor.counters.cpu_fallbacks += 1
            warn(text, CpuFallbackWarning, _log)

    def announce(self, session: object) -> None:
        for watch in watchers:
            watch(session, self)

    # --- facts ---

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
        """Whether the session's results agree with the CPU's, as far as known."""
        if self._numbers is not None:
            return self._numbers.report
        from qnnbridge_protocol.model_records import NumbersReport

        return NumbersReport("off", reason="verify='off'")

    def status(self) -> None:
        return None

    def variants_text(self) -> str:
        return ""

    # --- numbers ---

    def compare_first_calls(self) -> None:
        """Compare the first calls with the CPU before they return, whatever is known of the numbers. For tests."""
        from qnnbridge._session.numbers_check import NumbersCheck

        self._numbers = check = NumbersCheck(self.remote, "raise", anew=True)
        self.remote.wants_comparison = check.wants if self._chooses_calls else None

    def verify_ahead(self, deadline: float | None) -> None:
        """Compare made-up inputs with the CPU, unless the result is known, or none can be made up.

        Raises `NumbersDiffer`, for ``verify="raise"``.
        """
        check = self._numbers
        if check is None or not check.is_open:
            return
        left_s = seconds_left(deadline)
        try:
            feeds = self.checker.check(check.samples(left_s))
        # `samples` raises it for inputs that cannot be made up, such as strings or open sizes.
        except OptionError:
            return  # the first call shows it
        results = self.remote.run(None, feeds, None, CallLimits(left_s, self.remote.retry))
        self.remote.calls += 1
        check.compare_call(self.output_names, feeds, results, ahead=True)

    def wants_comparison(self, values: Iterable[Any]) -> bool:
        """Return whether the numbers of a call with these inputs are to be compared with the CPU's."""
        return self._numbers is not None and self._numbers.wants(values)

    def verify(self, input_feed: Mapping[str, Any] | None, timeout: float | None) -> NumbersReport:
        """Run the model here and on the CPU, compare the outputs, and keep the report for `verified`."""
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

    # --- running ---

    def run(
        self,
        names: Names,
        feed: Mapping[str, Any],
        run_options: RunOptions | Any,
        limits: CallLimits,
        wish: Wish | None = None,
    ) -> list[Any]:
        results, failed = None, None
        # A plan has no run options (tags, `terminate`, profiling), so a call with them always takes the connection.
        if run_options is None:
            results, failed = self._run_repeated(names, feed, wish, limits)
        if results is not None:
            return results
        refuse_at_the_end()
        from qnnbridge._ort_value import to_application

        values = self.run_values(names, feed, run_options, limits, failed=failed)
        if run_options is None and feed.__class__ is dict:
            # Learned after the connection has checked and computed the call. A copy: another thread may change the
            # application's dict meanwhile.
            self._known.learn(names, dict(feed), values)
        return [to_application(value) for value in values]

    def _run_repeated(
        self, names: Names, feed: Any, wish: Wish | None, limits: CallLimits
    ) -> tuple[list[Any] | None, FastCallFailed | None]:
        """Try the fast path. Without results the call must take the slow path, which continues a failure."""
        remote = self.remote
        if feed.__class__ is not dict:
            return None, None
        timeout = self._timeout
        if limits is not NO_LIMITS:
            if not remote.may_go_quick(limits.retry, limits.on_deadline):
                return None, None
            timeout = timeout if limits.timeout is None else limits.timeout
        try:
            return self._run_fast(remote, self._known.find, names, feed, timeout, wish), None
        except FastCallFailed as failure:
            # The exception is left before the slow path goes on: it would keep this frame, and with it the
            # call's arrays, alive until the repetition has ended.
            failed = failure.alone()
        # An output that is bound to an input's memory may be half written. A repetition would compute from
        # these bytes, so the caller gets `StateLost` where the host has ended.
        if failed.in_place:
            remote.refuse_repetition(failed)
        return None, failed

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
            results, failed = self._run_repeated(names, bound.feed, bound.wish, limits)
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
        """Return the outputs as they travel (`Typed` for types that numpy lacks).

        Args:
            failed: the attempt on the fast path that this call continues.
            compared: whether the call is compared with the CPU; default as the session decides.
            counted: the part of the outputs that does not follow from padding; default all.
        """
        remote = self.remote
        feeds = self.checker.check(feed)
        wanted = check_outputs(names, self.output_names)
        if remote.info.placement.qnn_nodes:
            # Without a node on QNN ONNX Runtime raises its own error, whose text applications know.
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

    # --- what only a session with buckets has ---

    def warm(self, *_: object) -> NoReturn:
        raise _no_buckets("warm()")

    def verify_padding(self, *_: object) -> NoReturn:
        raise _no_buckets("verify_padding()")

    # --- settings and life ---

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        self.remote.set_ep_dynamic_options(dict(options))

    def end_profiling(self) -> str:
        return self.remote.end_profiling()

    def close(self) -> None:
        # In this order: calls in other threads may still look up signatures, and the session's number is released
        # last.
        self._known.forget()
        self.remote.close()


def _no_buckets(what: str) -> OptionError:
    return OptionError(
        f"{what} is for a session with buckets.",
        fix="Create it with them: InferenceSession(model, buckets={'seq': [16, 32, 64, 128]}, pad=0).",
    )


def shown_facts(
    remote: RemoteSession, placement: Placement, variants: str, verified: NumbersReport
) -> Iterator[Fact]:
    """Yield what the `repr` of a session shows, without asking the host. variants: those of its buckets, or ''."""
    if remote.closed:
        yield "closed", ""
    yield from placement._shown_facts()
    if variants:
        yield variants, ""
    yield from remote.cache_status._shown_facts()
    if verified.state != "off":
        yield from verified._shown_facts()
    yield from more(remote.fixed)


# What a session imports after it was made: for runs, and to explain the death of a host.
_MODULES_OF_RUNS = (
    *("difflib", "hashlib", "secrets", "platformdirs", "psutil"),
    *("qnnbridge._diagnosis.crash", "qnnbridge._diagnosis.ort_log", "qnnbridge._fastpath.channel_pool"),
    *("qnnbridge._feeds", "qnnbridge._io_binding", "qnnbridge._ort_value", "qnnbridge._session.fast_calls"),
    *(
        "qnnbridge._session.numbers_check",
        "qnnbridge_os.files",
        "qnnbridge_os.sharing",
        "qnnbridge_protocol.values",
    ),
)


def _load_modules_of_runs() -> None:
    """Import all that a session needs later while the host makes it.

    No run waits for an import then, and a program may give up its rights or its root folder (`os.chroot`) once it
    has its sessions.
    """
    for name in _MODULES_OF_RUNS:
        importlib.import_module(name)


def check_outputs(wanted: Sequence[str] | None, known: Sequence[str]) -> list[str] | None:
    """Return the names of outputs; ``None`` for all. Raise `InvalidArgument` for a name that is not known."""
    if wanted is None:
        return None
    names = list(wanted)
    if not names:  # a generator of nothing
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
