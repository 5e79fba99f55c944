"""A session in the host process: how it is opened, run and closed.

`InferenceSession` is built on it, and the variants of a session with buckets are made of it. Names, argument order,
defaults and error classes are ONNX Runtime's. Additions are keyword-only. Thread-safe.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from qnnbridge._callers import warn_application
from qnnbridge._host import Host
from qnnbridge._providers import ProviderArgument, choose_fallback, normalize_providers
from qnnbridge._session import SessionRecipe
from qnnbridge._session.remote_session import RemoteSession
from qnnbridge._session.runs import NodeArg, RunArguments, RunOptions, RunVariants, check_call, coerce_run_options
from qnnbridge._session_options import SessionOptions
from qnnbridge._supervision.host_process import FastCallFailed, OnDeadline, seconds_left
from qnnbridge._threads import Background, refuse_at_the_end
from qnnbridge.errors import as_onnxruntime
from qnnbridge_protocol.errors import BridgeError, InvalidArgument, OptionError
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    import numpy as np

    from qnnbridge._fastpath.call import Names, Wish
    from qnnbridge._feeds import Counted, Out
    from qnnbridge._session.numbers_check import NumbersCheck
    from qnnbridge_protocol.model_records import NumbersReport


_log = log_of("qnnbridge.session")

# How long `close` waits for calls of `run_async` that are under way.
CLOSE_TIMEOUT_S = 2.0


class CpuFallbackWarning(UserWarning):
    """A session that requested QNN runs on the CPU, as its ``fallback`` allows."""


# Warns the application: text, category, and the log that gets the text, too.
Warn = Callable[[str, type[Warning], logging.Logger], None]

S = TypeVar("S", bound="BaseSession")

# Called with each session that has been created (`qnnbridge.testing`).
watchers: list[Callable[[BaseSession], None]] = []


class BaseSession(RunVariants):
    """A session in a host. `_open` fills its fields; `InferenceSession` takes the arguments of the application."""

    _warn: Warn = staticmethod(warn_application)
    # The look at its numbers; ``None`` if it was not asked for.
    _numbers: NumbersCheck | None = None
    # Whether it chooses the calls that are compared; else its owner does, which compares what the application gets.
    _chooses_calls = True

    def __init__(self, options: SessionOptions, timeout: float | None) -> None:
        self._options = options
        self._timeout = timeout
        self._background = Background("qnnbridge run_async")

    def _open(self, recipe: SessionRecipe, host: Host, retry: int, on_deadline: OnDeadline = "raise") -> None:
        # The fields below are set only when the host has made the session. So `set_providers`, which opens a
        # second time, leaves the old session in use if the new one cannot be made.
        remote = RemoteSession(host, recipe, retry=retry, timeout_s=self._timeout, while_busy=_load_modules_of_runs)
        info = remote.open(self._timeout, on_deadline)
        # Loaded while the host made the session, not for its start, which would wait for numpy.
        from qnnbridge._fastpath.call import KnownCalls
        from qnnbridge._feeds import FeedChecker
        from qnnbridge._session.fast_calls import run

        self._run_fast = run
        self._remote = remote
        self._inputs = [NodeArg(node) for node in info.inputs]
        self._outputs = [NodeArg(node) for node in info.outputs]
        self._overridable = [NodeArg(node) for node in info.overridable_initializers]
        self._checker = FeedChecker(info.inputs, info.overridable_initializers)
        self._output_names = [node.name for node in self._outputs]
        self._known = KnownCalls(self._output_names)
        self._numbers = None
        if recipe.verify != "off":
            from qnnbridge._session.numbers_check import NumbersCheck, verify_mode

            self._numbers = NumbersCheck(remote, verify_mode(recipe.verify))
            remote.wants_comparison = self._numbers.wants if self._chooses_calls else None
            try:
                self._numbers.known_before()
            except BridgeError:
                remote.close()
                raise
        placement = info.placement
        if placement.backend not in ("", "htp"):  # these two need no further module
            from qnnbridge_protocol.config_keys import BACKENDS_WITHOUT_RESULTS

            no_results = BACKENDS_WITHOUT_RESULTS.get(placement.backend)
            if no_results is not None:
                warn_application(f"{remote.recipe.label}: {no_results}", RuntimeWarning)
        # No CPU by accident: with fallback="cpu" a session in which QNN took no node is counted, logged and
        # warned of. A host whose placement is not known (`known`) proves nothing in either direction.
        if recipe.spec.fallback == "cpu" and placement.known and not placement.qnn_nodes and placement.backend:
            text = f"{remote.recipe.label} runs on the CPU: no node of it could be placed on QNN"
            text += f" ({placement.cause.rstrip('.')})." if placement.cause else "."
            command = remote.recipe.command("analyze")
            text += f" `{command}` names the reason for each node." if command else ""
            if not remote.moved:  # that was counted
                host.supervisor.counters.cpu_fallbacks += 1
            self._warn(text, CpuFallbackWarning, _log)
        for watch in watchers:
            watch(self)

    # --- numbers ---

    @property
    def verified(self) -> NumbersReport:
        """Whether the session's results agree with the CPU's, as far as known."""
        if self._numbers is not None:
            return self._numbers.report
        from qnnbridge_protocol.model_records import NumbersReport

        return NumbersReport("off", reason="verify='off'")

    def compare_first_calls(self) -> None:
        """Compare the first calls with the CPU before they return, whatever is known of the numbers. For tests."""
        from qnnbridge._session.numbers_check import NumbersCheck

        self._numbers = check = NumbersCheck(self._remote, "raise", anew=True)
        self._remote.wants_comparison = check.wants if self._chooses_calls else None

    def verify_ahead(self, deadline: float | None) -> None:
        """Compare made-up inputs with the CPU, unless it is known, was not asked for, or none can be made up.

        Raises `NumbersDiffer`, for ``verify="raise"``.
        """
        check = self._numbers
        if check is None or not check.is_open:
            return
        left_s = seconds_left(deadline)
        try:
            feeds = self._checker.check(check.samples(left_s))
        # `samples` raises it for inputs that cannot be made up, such as strings or sizes that the model
        # leaves open.
        except OptionError:
            return  # the first call shows it
        results = self._remote.run(
            None, feeds, None, timeout_s=left_s, retry=self._remote.retry, on_deadline="raise"
        )
        self._remote.calls += 1
        check.compare_call(self._output_names, feeds, results, ahead=True)

    def wants_comparison(self, values: Iterable[Any]) -> bool:
        """Whether the numbers of a call with these inputs are to be compared with the CPU's."""
        return self._numbers is not None and self._numbers.wants(values)

    def verify(self, input_feed: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> NumbersReport:
        """As `InferenceSession.verify`."""
        return self.verify_part(input_feed, timeout, None)

    def verify_part(
        self, input_feed: Mapping[str, Any] | None, timeout: float | None, counted: Counted | None
    ) -> NumbersReport:
        """`verify` of the part of the outputs that `counted` leaves; ``None`` for all."""
        from qnnbridge._session.numbers_check import NumbersCheck
        from qnnbridge_protocol.model_records import MADE_UP

        limit = self._timeout if timeout is None else timeout
        try:
            check = self._numbers or NumbersCheck(self._remote, "off")
            given = "the inputs given" if input_feed is not None else MADE_UP
            feeds = self._checker.check(check.samples(limit) if input_feed is None else input_feed)
            results = self._remote.run(
                None, feeds, None, timeout_s=limit, retry=self._remote.retry, on_deadline="raise"
            )
            self._remote.calls += 1
            self._numbers = check
            return check.compare(self._output_names, feeds, results, limit, given, counted)
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    # --- running ---

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | Any = None,
        *,
        timeout: float | None = None,
        retry: int | None = None,
        on_deadline: OnDeadline = "raise",
        borrow: bool = False,
        out: Out | None = None,
    ) -> list[Any]:
        """Run the model and return the outputs, in the order of `output_names` (all if ``None`` or empty).

        From the second call with the same names, types and shapes, it uses the fast path.

        Args:
            timeout: seconds; default that of the session. After them `DeadlineExceeded` is raised, at
                most one second late; its ``state`` says whether the work still runs in the host.
            retry: repetitions if the host dies; default that of the session.
            on_deadline: "kill" ends the host when the work still runs; other calls are repeated in the next.
            borrow: the arrays returned are read-only, and where possible they are the very memory that the host has
                written to: nothing is copied. Their contents stay unchanged while they are referenced.
            out: arrays for the outputs (a list in the order of the outputs, or a map by name; ``None`` for one that
                shall be new). What `empty_output` made is filled by the host itself.
        """
        try:
            if timeout is not None or retry is not None or on_deadline != "raise":
                check_call(timeout, retry, on_deadline)
            names = self._names(output_names, input_feed)
            wish = None
            if out is not None or borrow:
                from qnnbridge._fastpath.call import Wish
                from qnnbridge._feeds import check_out, deliver

                out = None if out is None else check_out(out, names or self._output_names)
                wish = Wish(out, "borrowed" if out is None else "")
            # Run options (tags, `terminate`, profiling of a run) are no part of a plan, so a call with them
            # always takes the connection.
            results, failed = None, None
            if run_options is None:
                results, failed = self._run_repeated(names, input_feed, wish, timeout, retry, on_deadline)
            if results is None:
                refuse_at_the_end()
                how = RunArguments(run_options, timeout, retry, on_deadline, failed)
                results = self._run_slow_path(names, input_feed, how)
            if out is not None:
                return deliver(results, out)
        except BridgeError as error:
            raise as_onnxruntime(error) from None
        if borrow:
            import numpy as np

            for result in results:
                if isinstance(result, np.ndarray):
                    result.flags.writeable = False
        return results

    def _run_repeated(
        self,
        names: Names,
        feed: Any,
        wish: Wish | None,
        timeout: float | None,
        retry: int | None,
        on_deadline: OnDeadline,
    ) -> tuple[list[Any] | None, FastCallFailed | None]:
        """Try the fast path. No results: the call must take the slow path, which continues a failure."""
        remote = self._remote
        if not self._quick or feed.__class__ is not dict:
            return None, None
        if (retry is not None or on_deadline != "raise") and not remote.may_go_quick(retry, on_deadline):
            return None, None
        try:
            limit = self._timeout if timeout is None else timeout
            return self._run_fast(remote, self._known.find, names, feed, limit, wish), None
        except FastCallFailed as failure:
            # The exception is left before the slow path goes on: it would keep this frame, and with it the
            # call's arrays, alive until the repetition has ended.
            failed = failure.alone()
        # An output that is bound to an input's memory may be half written. A repetition would compute from
        # these bytes, so the caller gets `StateLost` where the host has ended.
        if failed.in_place:
            remote.refuse_repetition(failed)
        return None, failed

    def _run_slow_path(self, names: Names, input_feed: Mapping[str, Any], how: RunArguments) -> list[Any]:
        """Values as the application gets them."""
        from qnnbridge._ort_value import to_application

        values = self._run_values(names, input_feed, how)
        if how.run_options is None and input_feed.__class__ is dict:
            # Learned after the connection has checked and computed the call. A copy: another thread may
            # change the application's dict meanwhile.
            self._known.learn(names, dict(input_feed), values)
        return [to_application(value) for value in values]

    def empty_input(self, name: str, shape: Sequence[int] | None = None) -> np.ndarray[Any, np.dtype[Any]]:
        """An array for an input, without content, that the host reads where it is: fill it, and feed it to `run`.

        Only the array itself is read in place; a view of a part of it is copied like any array. It is an ordinary
        array where memory cannot be shared.

        Args:
            shape: default that of the model, if it is fixed.
        """
        refuse_at_the_end()
        from qnnbridge._fastpath.memory import empty

        try:
            return empty(self._remote.host, name, shape, (*self._inputs, *self._overridable), host_writes=False)
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    def empty_output(self, name: str, shape: Sequence[int] | None = None) -> np.ndarray[Any, np.dtype[Any]]:
        """An array for ``run(..., out=...)`` that the host writes to where it is. See `empty_input`.

        After a `DeadlineExceeded` that says "still-running" the host may write to it until that run has ended.
        """
        refuse_at_the_end()
        from qnnbridge._fastpath.memory import empty

        try:
            return empty(self._remote.host, name, shape, self._outputs, host_writes=True)
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    def run_values(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | Any = None,
        *,
        timeout: float | None = None,
        retry: int | None = None,
        on_deadline: OnDeadline = "raise",
        compared: bool | None = None,
        counted: Counted | None = None,
    ) -> list[Any]:
        """`run` with outputs as the wire has them (`Typed` for types that numpy lacks)."""
        how = RunArguments(run_options, timeout, retry, on_deadline, compared=compared, counted=counted)
        return self._run_values(self._names(output_names, input_feed), input_feed, how)

    def _run_values(self, requested: Names, input_feed: Mapping[str, Any], how: RunArguments) -> list[Any]:
        try:
            how.check()
            feeds = self._checker.check(input_feed)
            names = check_outputs(requested, self._output_names)
            if self._remote.info.placement.qnn_nodes:
                # Without a node on QNN ONNX Runtime raises its own error, whose text applications know.
                self._checker.refuse_missing(feeds)
            options = None if how.run_options is None else coerce_run_options(how.run_options)
            values = self._remote.run(
                names,
                feeds,
                None if options is None else options.to_spec(),
                timeout_s=self._timeout if how.timeout is None else how.timeout,
                retry=self._remote.retry if how.retry is None else how.retry,
                on_deadline=how.on_deadline,
                stop=options,
                failed=how.failed,
            )
            check, compared = self._numbers, how.compared
            if compared is None and check is not None:
                compared = self._chooses_calls and check.wants(value for _, value, _ in feeds)
            self._remote.calls += 1
            if compared and check is not None:
                check.compare_call(names or self._output_names, feeds, values, counted=how.counted)
            return values
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    # --- settings and life ---

    def set_providers(
        self,
        providers: Sequence[ProviderArgument] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Create the session again with other providers."""
        old = self._remote
        # The new session first: if it cannot be made, the old one stays. For a moment the host has both.
        self._open(with_providers(old.recipe, providers, provider_options), old.host, old.retry)
        old.close()

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Change settings of the execution provider between runs (``ep.dynamic.workload_type``)."""
        try:
            self._remote.set_ep_dynamic_options(dict(options))
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    def disable_fallback(self) -> None:
        """Nothing to do: ONNX Runtime's retry on the CPU is always off."""

    def enable_fallback(self) -> None:
        """Refused: this project exists to prevent a silent fallback."""
        warn_application(
            "enable_fallback() does nothing. Create the session with InferenceSession(path, fallback='cpu'); its "
            "`placement` then reports the nodes on the CPU.",
            CpuFallbackWarning,
        )

    def end_profiling(self) -> str:
        """Stop profiling; the path of the result file, empty if the session has no profile.

        Raises `StateLost` if the profile began in a host that has been replaced since.
        """
        try:
            return self._remote.end_profiling()
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    def close(self) -> None:
        """Release the session in the host. Idempotent."""
        # In this order: calls of `run_async` may still look up signatures, and the session's number is
        # released last.
        self._background.wait(CLOSE_TIMEOUT_S)
        self._known.forget()
        self._remote.close()

    def __enter__(self: S) -> S:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
    """Load all that a session imports later while the host makes it.

    No run waits for an import then, and a program may give up its rights or its root folder (`os.chroot`) once it
    has its sessions.
    """
    for name in _MODULES_OF_RUNS:
        importlib.import_module(name)


def check_outputs(wanted: Sequence[str] | None, known: Sequence[str]) -> list[str] | None:
    """``None`` for all. Raises `InvalidArgument` for a name that is not known."""
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


def with_providers(
    recipe: SessionRecipe,
    providers: Sequence[ProviderArgument] | None,
    provider_options: Sequence[Mapping[str, Any]] | None,
) -> SessionRecipe:
    """The recipe with other providers, for the model as it is now."""
    specs = normalize_providers(providers, provider_options)
    recipe = recipe.forget_model()
    spec = dataclasses.replace(recipe.spec, providers=specs, fallback=choose_fallback(specs, None))
    return dataclasses.replace(recipe, spec=spec)
