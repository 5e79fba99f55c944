"""`InferenceSession`: the proxy with the interface of ``onnxruntime.InferenceSession``.

Names, argument order, defaults and error classes are the same as in ONNX Runtime. Additional arguments are
keyword-only. The session converts arguments and errors, and passes its calls to a `Runner`, which uses one session
in the host, or one session for each bucket. Thread-safe.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from qnnbridge._callers import warn_application
from qnnbridge._host import DAEMON, chosen_host
from qnnbridge._options.providers import ProviderArgument
from qnnbridge._session import SessionRecipe
from qnnbridge._session.create import choose_model
from qnnbridge._session.remote_runner import CpuFallbackWarning, RemoteRunner, Warn, shown_facts
from qnnbridge._session.runs import ModelMetadata, NodeArg, RunOptions, coerce_session_options, requested_names
from qnnbridge._session_arguments import bucket_arguments, fix_spec, read_recipe, with_providers
from qnnbridge._session_options import SessionOptions
from qnnbridge._supervision.host_process import deadline_after, seconds_left
from qnnbridge._supervision.retries import NO_LIMITS, CallLimits
from qnnbridge._threads import Background, refuse_at_the_end
from qnnbridge.errors import as_onnxruntime
from qnnbridge_protocol.errors import BridgeError, RemoteError, RemoteValueError
from qnnbridge_protocol.model_records import CacheStatus
from qnnbridge_protocol.shown import Shown
from qnnbridge_protocol.specs import Fallback, Placement
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    import numpy as np

    from qnnbridge._buckets import BucketArguments
    from qnnbridge._buckets.padding import PaddingReport
    from qnnbridge._buckets.variants import BucketStatus, Progress
    from qnnbridge._fastpath.call import Names
    from qnnbridge._host import Host
    from qnnbridge._io_binding import IOBinding
    from qnnbridge._runner import Runner
    from qnnbridge._session.remote_session import RemoteSession
    from qnnbridge._supervision.host_process import OnDeadline
    from qnnbridge._values.feeds import Out
    from qnnbridge._values.ort_value import OrtValue
    from qnnbridge_protocol.model_records import NumbersReport
    from qnnbridge_protocol.shown import Fact


_log = log_of("qnnbridge.session")

# Seconds that `close` waits for calls of `run_async`.
CLOSE_TIMEOUT_S: Final = 2.0

S = TypeVar("S", bound="InferenceSession")


class InferenceSession(Shown):
    """A model that is ready to run in the host process.

    Args:
        path_or_bytes: the model's file, or its bytes.
        sess_options: `SessionOptions`.
        providers: execution providers in order of preference, as names or (name, options) pairs.
            Default: only QNN.
        provider_options: the options of each provider, if `providers` is a list of names.
        host: the host process to use. Default: a host that all sessions of this process share. "daemon": the host
            that applications share (see `qnnbridge.connect`).
        fallback: "error" (default) refuses the session if a node would not run on QNN. "cpu" lets ONNX Runtime
            put such nodes on the CPU; listing ``CPUExecutionProvider`` after QNN has the same effect. `placement`
            reports the result.
        timeout: time limit in seconds for the creation, and the default for calls. Default: no limit, since
            compiling can take minutes.
        retry: how often a call that may have crashed the host is repeated in a new host.
        on_deadline: "kill" ends the host if the session is still being created at the deadline.
        cache: ``False`` compiles the model for this session only; ``True`` stores even small models in the cache of
            compiled models. Default: the cache stores larger models for QNN (see docs/cache.md). The property
            `cache` reports the result.
        verify: how the host compares the results of the first call, and of a few later calls, with the CPU's
            results. "warn" compares in the background and warns (`NumbersWarning`) if results differ; "raise"
            compares before the call returns, and raises `NumbersDiffer`; ``False`` does not compare. Default: the
            value of ``QNNBRIDGE_VERIFY``, else "warn". The verdict is cached for each combination of model,
            options, chip and version. `verified` reports the verdict and the number of compared calls.
        fix: whether the session is created from a rewritten copy of the model (`qnnbridge fix`). Runs on the CPU
            check that a rewrite does not change the results. Default: rewrite operators that QNN is known to
            compute wrong; with `buckets`, also rewrite operators that QNN refuses. ``True`` rewrites all operators
            that QNN may refuse or compute wrong; ``False`` rewrites nothing. A map selects the rewrites:
            ``{"constants": {"sr": 16000}, "only": [...], "skip": [...]}``. `fixed` lists the rewrites.
        buckets, pad, cut, split, overflow, chunk: sizes for free dimensions, and handling of calls with other
            sizes; see docs/buckets.md.
        enable_fallback, disabled_optimizers: as in ONNX Runtime. A silent fallback to the CPU stays off for every
            value of `enable_fallback`.

    Raises the errors of `qnnbridge.errors`; errors of ONNX Runtime are also instances of its classes if the
    application has imported it.
    """

    _warn: Warn = staticmethod(warn_application)
    _bucket_arguments: BucketArguments | None = None
    # `_start` sets the following attributes.
    _runner: Runner
    _inputs: list[NodeArg]
    _outputs: list[NodeArg]
    _overridable: list[NodeArg]

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | Any = None,
        providers: Sequence[ProviderArgument] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        host: Host | Literal["daemon"] | None = None,
        fallback: Fallback | None = None,
        timeout: float | None = None,
        retry: int = 1,
        on_deadline: OnDeadline = "raise",
        cache: bool | None = None,
        verify: bool | Literal["off", "warn", "raise"] | None = None,
        fix: bool | Mapping[str, Any] | None = None,
        buckets: Mapping[str, int | Sequence[int]] | Sequence[Mapping[str, int]] | None = None,
        pad: Mapping[str, Any] | Any = None,
        cut: Mapping[str, Sequence[int | str | None]] | None = None,
        split: str | Sequence[str] | None = None,
        overflow: Fallback = "error",
        chunk: str | Mapping[str, int] | None = None,
        enable_fallback: int | bool = 0,
        disabled_optimizers: Sequence[str] | None = None,
    ) -> None:
        try:
            creation = CallLimits(timeout, retry, on_deadline).checked()
            self._bucket_arguments = bucket_arguments(buckets, pad, cut, split, overflow, chunk)
            host = chosen_host(host)
            options = coerce_session_options(sess_options, providers_given=providers is not None)
            recipe = read_recipe(
                path_or_bytes,
                options,
                providers,
                provider_options,
                fallback=fallback,
                cache=cache,
                verify=verify,
                fix=fix_spec(fix, buckets=buckets is not None),
                disabled_optimizers=disabled_optimizers,
            )
            self._set_up(options, timeout)
            self._start(self._make_runner(recipe, host, creation))
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    def _set_up(self, options: SessionOptions, timeout: float | None) -> None:
        self._options = options
        self._timeout = timeout
        self._background = Background("qnnbridge run_async")

    def _make_runner(self, recipe: SessionRecipe, host: Host, creation: CallLimits) -> Runner:
        """Create the runner for the calls. Overridden in `qnnbridge.ort`, to choose recipe and bucket sizes."""
        recipe, retry = choose_model(host, recipe, creation.timeout), creation.retry or 0
        if self._bucket_arguments is None:
            return RemoteRunner(host, recipe, retry, creation, self._timeout, self._warn)
        from qnnbridge._buckets.session import BucketedRunner  # needed only for sessions with buckets

        return BucketedRunner(recipe, self._bucket_arguments, host, retry, creation, self._timeout, self._warn)

    def _start(self, runner: Runner) -> None:
        """Use `runner` for all later calls."""
        # If `set_providers` fails to create a new runner, this line is not reached, and the old runner remains in
        # use.
        self._runner = runner
        # Import here and not in `run`, where an import statement would take 2 us of each call. This import is fast,
        # because the runner has already imported both modules.
        from qnnbridge._fastpath.call import OutputPlacement
        from qnnbridge._values.feeds import check_out, deliver, protect

        self._for_outputs = OutputPlacement, check_out, deliver, protect
        self._inputs = [NodeArg(node) for node in runner.inputs]
        self._outputs = [NodeArg(node) for node in runner.outputs]
        self._overridable = [NodeArg(node) for node in runner.overridable]
        runner.announce(self)

    # --- runs ---

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
        """Run the model and return the outputs in the order of `output_names`. ``None`` or an empty list requests
        all.

        The second and later calls with the same names, types and shapes use the fast path.

        Args:
            timeout: time limit in seconds; default: the session's. When it expires, `DeadlineExceeded` is raised,
                at most one second late; its ``state`` reports whether the host still works on the call.
            retry: number of repetitions if the host dies; default: the session's.
            on_deadline: "kill" ends the host if it still works on the call at the deadline. The host's other calls
                are repeated in the next host.
            borrow: return read-only arrays that, where possible, use the memory to which the host has written, so
                that nothing is copied. Their contents remain unchanged while they are referenced.
            out: arrays for the outputs (a list in the order of the outputs, or a map by name; ``None`` for a new
                array). The host writes directly to arrays of `empty_output`.
        """
        try:
            limits = NO_LIMITS
            if timeout is not None or retry is not None or on_deadline != "raise":
                limits = CallLimits(timeout, retry, on_deadline).checked()
            names = None if output_names is None else self._names(output_names, input_feed)
            if out is not None or borrow:
                make_memory, check_out, deliver, protect = self._for_outputs
                arrays = None if out is None else check_out(out, names or self._runner.output_names)
                memory = make_memory(arrays, "borrowed" if arrays is None else "")
                results = self._runner.run(names, input_feed, run_options, limits, memory)
                return protect(results) if arrays is None else deliver(results, arrays)
            return self._runner.run(names, input_feed, run_options, limits)
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
    ) -> list[Any]:
        """Run the model. Return the outputs as the host sends them (`Typed` objects for types unknown to numpy)."""
        try:
            limits = CallLimits(timeout, retry, on_deadline).checked()
            names = self._names(output_names, input_feed)
            return self._runner.run_values(names, input_feed, run_options, limits)
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | Any = None,
        *,
        timeout: float | None = None,
        retry: int | None = None,
        on_deadline: OnDeadline = "raise",
    ) -> None:
        """Run the model in the background and call ``callback(results, user_data, error_text)`` from another
        thread.

        As in ONNX Runtime, the error for an invalid input type is raised here, and every other error goes to the
        callback. `timeout` counts from this call, not from the start of the run.
        """
        CallLimits(timeout, retry, on_deadline).checked()
        deadline = deadline_after(self._timeout if timeout is None else timeout)
        output_names, input_feed = self.arguments_now(output_names, input_feed)
        try:
            self._runner.checker.check(input_feed)
        except RemoteError:
            raise
        except BridgeError:
            pass  # `run` raises the same error in `work`, which passes it to the callback

        def work() -> None:
            try:
                left_s = seconds_left(deadline)
                results = self.run(
                    output_names, input_feed, run_options, timeout=left_s, retry=retry, on_deadline=on_deadline
                )
                error = ""
            except Exception as failure:  # noqa: BLE001 - passed to the callback
                results, error = [], str(failure)
            try:
                callback(results, user_data, error)
            except Exception:  # noqa: BLE001 - no other code would see this error
                _log.exception("The callback of run_async failed.")

        self._background.submit(work)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | Any = None,
        *,
        timeout: float | None = None,
        retry: int | None = None,
        on_deadline: OnDeadline = "raise",
    ) -> list[OrtValue]:
        """Run the model like `run`, with inputs and outputs of the class `OrtValue`."""
        refuse_at_the_end()
        from qnnbridge._values.ort_value import OrtValue

        feed = {name: value.value for name, value in input_dict_ort_values.items()}
        declared = {node.name: node.type for node in self._outputs}
        names = self._names(output_names, feed)
        values = self.run_values(names, feed, run_options, timeout=timeout, retry=retry, on_deadline=on_deadline)
        shown = names or self._runner.output_names
        return [OrtValue(value, declared=declared[name]) for name, value in zip(shown, values, strict=True)]

    def run_bound(
        self,
        output_names: Sequence[str],
        inputs: Mapping[str, OrtValue],
        outputs: Sequence[OrtValue | None],
        run_options: RunOptions | Any = None,
        *,
        timeout: float | None = None,
        retry: int | None = None,
        on_deadline: OnDeadline = "raise",
    ) -> list[Any]:
        """Run the model with the values of an `IOBinding`, which may be in shared memory.

        Args:
            outputs: values that receive the outputs, in the order of the names; ``None`` for a new value.
        """
        refuse_at_the_end()
        try:
            limits = CallLimits(timeout, retry, on_deadline).checked()
            return self._runner.run_bound(tuple(output_names), inputs, outputs, run_options, limits)
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    def _names(self, output_names: Any, feed: Any) -> Names:
        """Return the names of the requested outputs. Iterate over the argument only once: it may be a generator."""
        try:
            return requested_names(output_names)
        except Exception:
            self._runner.checker.require_all(feed)  # report a missing input first, as ONNX Runtime does
            raise

    def arguments_now(self, output_names: Any, input_feed: Any) -> tuple[Names, Any]:
        """Return copies of names and feed for a later `run`, so that changes by the application have no effect."""
        names = self._names(output_names, input_feed)
        return names, dict(input_feed) if isinstance(input_feed, Mapping) else input_feed

    def io_binding(self) -> IOBinding:
        """Return an empty binding for `run_with_iobinding`."""
        refuse_at_the_end()
        from qnnbridge._io_binding import IOBinding

        return IOBinding(self)

    def run_with_iobinding(
        self,
        iobinding: IOBinding,
        run_options: RunOptions | Any = None,
        *,
        timeout: float | None = None,
        retry: int | None = None,
        on_deadline: OnDeadline = "raise",
    ) -> None:
        """Run the model with bound inputs and store the results in the bound outputs. The keywords are those of
        `run`."""
        if iobinding.session is not self:
            # ONNX Runtime's message
            raise RemoteValueError("IOBinding must be used with the session that created it.")
        iobinding.run(run_options, timeout=timeout, retry=retry, on_deadline=on_deadline)

    def empty_input(self, name: str, shape: Sequence[int] | None = None) -> np.ndarray[Any, np.dtype[Any]]:
        """Return an uninitialized array for an input, in memory that the host can read. Fill the array and pass it
        to `run`.

        The host reads the array without a copy only if the whole array is passed; a view of a part of it is copied.
        If memory cannot be shared, the result is an ordinary array.

        Args:
            shape: default: the input's shape in the model, if that shape is fixed.
        """
        return self._empty(name, shape, (*self._inputs, *self._overridable), host_writes=False)

    def empty_output(self, name: str, shape: Sequence[int] | None = None) -> np.ndarray[Any, np.dtype[Any]]:
        """Return an array for ``run(..., out=...)`` in memory to which the host can write. See `empty_input`.

        After a `DeadlineExceeded` whose ``state`` is "still-running" the host may write to the array until that run
        has ended.
        """
        return self._empty(name, shape, self._outputs, host_writes=True)

    def _empty(
        self, name: str, shape: Sequence[int] | None, nodes: Sequence[NodeArg], *, host_writes: bool
    ) -> np.ndarray[Any, np.dtype[Any]]:
        refuse_at_the_end()
        from qnnbridge._fastpath.memory import empty

        try:
            return empty(self.host, name, shape, nodes, host_writes=host_writes)
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    # --- buckets ---

    @property
    def buckets(self) -> BucketStatus | None:
        """Status of the variants and statistics of the calls; ``None`` for a session without ``buckets=``."""
        return self._runner.status()

    def warm(
        self,
        sizes: Sequence[Mapping[str, int]] | None = None,
        *,
        workers: int = 1,
        timeout: float | None = None,
        on_progress: Progress | None = None,
    ) -> BucketStatus:
        """Create the sessions of variants (one for each combination of sizes) now, so that no call waits for a
        compilation.

        Args:
            sizes: the variants to create, for example ``[{"seq": 16}, {"seq": 32}]``; default: all.
            workers: number of variants to create at the same time. Each variant that the cache stores is compiled
                in its own process.
            timeout: time limit in seconds for all variants together; default: the session's.
            on_progress: called with the number of created variants, the number of all variants, and the sizes of
                the next variant.
        """
        try:
            return self._runner.warm(sizes, workers, timeout, on_progress)
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    def verify_padding(
        self,
        feeds: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        tolerance: float | None = None,
        timeout: float | None = None,
    ) -> PaddingReport:
        """Check whether padding changes the results.

        The model runs on the CPU with the original and with the padded inputs. The results are compared after the
        padding has been removed from the outputs.

        Args:
            feeds: inputs as for `run`, smaller than their buckets, or a list of such inputs.
            tolerance: allowed difference, relative to the largest result of the output; default 0.001.
        """
        try:
            return self._runner.verify_padding(feeds, tolerance, timeout)
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    # --- comparison with the CPU ---

    @property
    def verified(self) -> NumbersReport:
        """Report of the comparison with the CPU's results; with buckets, the report of the worst variant."""
        return self._runner.verified

    def verify(self, input_feed: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> NumbersReport:
        """Run the model in this session and on the CPU, and compare the outputs. Store the report in `verified`.

        The host runs the model on the CPU in a separate process. Different results do not raise an error. With
        buckets, the result of `run` (after padding, splitting or windows) is compared with the CPU's result for the
        original inputs; without `input_feed`, the smallest variant is compared.

        Args:
            input_feed: inputs as for `run`; default: generated values, which may be untypical for the model.
            timeout: time limit in seconds; default: the session's.
        """
        try:
            return self._runner.verify(input_feed, timeout)
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    # --- information ---

    def get_inputs(self) -> list[NodeArg]:
        """Return name, type and shape of each input."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Return name, type and shape of each output."""
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the initializers that may be given as inputs."""
        return list(self._overridable)

    def get_modelmeta(self) -> ModelMetadata:
        """Return the metadata of the model file."""
        return ModelMetadata(self._remote.info.modelmeta)

    def get_providers(self) -> list[str]:
        """Return the session's execution providers. `placement` reports which of them run the nodes."""
        return list(self._remote.info.providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options of each provider, including the defaults that the host added."""
        return {name: dict(options) for name, options in self._remote.info.provider_options.items()}

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_profiling_start_time_ns(self) -> int:
        """Return the start of profiling in nanoseconds, on the host's clock."""
        return self._remote.info.profiling_start_time_ns

    @property
    def placement(self) -> Placement:
        """Number of nodes on QNN and on the CPU, and the reason for nodes on the CPU; with buckets, for the variant
        with the most nodes on the CPU."""
        return self._runner.placement

    @property
    def cache(self) -> CacheStatus:
        """Whether the session was created from a compiled model in the cache, and the reason if it was not."""
        return self._remote.cache_status

    @property
    def fixed(self) -> tuple[str, ...]:
        """Rewrites that were applied to the model (``fix=``), one line for each."""
        return self._remote.fixed

    @property
    def generation(self) -> int:
        """Number of the host process (generation) in which the session was created last."""
        return self._runner.generation

    @property
    def host(self) -> Host:
        return self._remote.host

    @property
    def _remote(self) -> RemoteSession:
        """The `RemoteSession` of this session; with buckets, that of the first variant."""
        return self._runner.remote

    def _shown_name(self) -> str:
        runner = getattr(self, "_runner", None)
        return "" if runner is None else runner.recipe.label

    def _shown_facts(self) -> Iterable[Fact]:
        runner = getattr(self, "_runner", None)
        # The session has no runner if its creation failed or has not ended.
        if runner is None:
            return [("not open", "")]
        return shown_facts(self._remote, self.placement, runner.variants_text(), self.verified)

    # --- settings and closing ---

    def set_providers(
        self,
        providers: Sequence[ProviderArgument] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Create the session again with other providers."""
        old = self._runner
        try:
            recipe = with_providers(old.recipe, providers, provider_options)
            # Create the new session first, so that the old session remains if the creation fails. For a moment the
            # host contains two sessions.
            self._start(self._make_runner(recipe, self.host, CallLimits(self._timeout, old.remote.retry)))
        except BridgeError as error:
            raise as_onnxruntime(error) from None
        old.close()

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Change settings of the execution provider between runs (``ep.dynamic.workload_type``)."""
        try:
            self._runner.set_ep_dynamic_options(options)
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    def disable_fallback(self) -> None:
        """Do nothing: ONNX Runtime's retry on the CPU is always off."""

    def enable_fallback(self) -> None:
        """Warn and do nothing: a silent fallback to the CPU is not available."""
        warn_application(
            "enable_fallback() does nothing. Create the session with InferenceSession(path, fallback='cpu'); its "
            "`placement` then reports the nodes on the CPU.",
            CpuFallbackWarning,
        )

    def end_profiling(self) -> str:
        """Stop profiling and return the path of the result file. Return "" if the session has no profile.

        Raises `StateLost` if the profile began in a host that has been replaced since.
        """
        try:
            return self._runner.end_profiling()
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    def close(self) -> None:
        """Release the session in the host. Idempotent."""
        self._background.wait(CLOSE_TIMEOUT_S)
        self._runner.close()

    def __enter__(self: S) -> S:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the session's arguments; unpickling creates the session again in a host of the other process."""
        host = DAEMON if self.host.is_daemon else None
        recipe = self._runner.recipe.forget_model()
        return _remake, (recipe, self._remote.retry, self._timeout, host, self._bucket_arguments)


def from_recipe(
    recipe: SessionRecipe,
    host: Host,
    creation: CallLimits,
    timeout: float | None,
    buckets: BucketArguments | None = None,
    warn: Warn = warn_application,
) -> InferenceSession:
    """Create a session from a recipe (`SessionRecipe`) instead of the application's arguments.

    Args:
        creation: time limit for creating the session, and number of repetitions after crashes.
        timeout: the default time limit of calls, in seconds.
        warn: function that warns the application.
    """
    session = InferenceSession.__new__(InferenceSession)
    session._set_up(SessionOptions.from_spec(recipe.spec), timeout)
    session._bucket_arguments, session._warn = buckets, warn
    session._start(session._make_runner(recipe, host, creation))
    return session


def _remake(
    recipe: SessionRecipe,
    retry: int,
    timeout: float | None,
    host: Literal["daemon"] | None,
    buckets: BucketArguments | None,
) -> InferenceSession:
    return from_recipe(recipe, chosen_host(host), CallLimits(timeout, retry), timeout, buckets)
