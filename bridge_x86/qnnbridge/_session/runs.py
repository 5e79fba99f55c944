"""Options and arguments of a run, and what surrounds `run` in a session: its getters, and the other ways to run.

One `RunOptions` may be used by several runs at once and changed from another thread: ``terminate = True``
reaches the runs that use it through listeners (`TerminateRelay`). The file of a LoRA adapter is read in the host,
once; its path travels with a run.

An options object of onnxruntime can only exist if the application imported that package, so nothing is
imported. ONNX Runtime offers no way to list configuration entries: its known keys (`config_keys`) are read
one by one. Unreadable parts are either refused (providers) or announced with a warning.

`RunVariants` runs in the background, with `OrtValue` or with a binding; each ends in `run` or `run_values`.
"""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge._callers import warn_application
from qnnbridge._option_fields import Field, HasFields, as_bool, as_int32, as_text, checked_name, wrong_type
from qnnbridge._session_options import SessionOptions, add_entry, get_entry
from qnnbridge._supervision.host_process import deadline_after, seconds_left
from qnnbridge._threads import Background, TerminateFlag, refuse_at_the_end
from qnnbridge.errors import as_onnxruntime
from qnnbridge_protocol import errors
from qnnbridge_protocol.errors import (
    BridgeError,
    DeadlineExceeded,
    NoSuchFile,
    OptionError,
    RemoteError,
    RemoteRuntimeError,
    RemoteTypeError,
    RemoteValueError,
    StateLost,
)
from qnnbridge_protocol.model_records import CacheStatus
from qnnbridge_protocol.specs import NodeInfo, Placement, RunSpec
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge._fastpath.call import KnownCalls, Names
    from qnnbridge._feeds import Counted, FeedChecker
    from qnnbridge._host import Host
    from qnnbridge._io_binding import IOBinding
    from qnnbridge._ort_value import OrtValue
    from qnnbridge._session.remote_session import RemoteSession
    from qnnbridge._session_options import SessionOptions
    from qnnbridge._supervision.host_process import FastCallFailed, OnDeadline


class LoraAdapter:
    """With the one method of ``onnxruntime.LoraAdapter``."""

    def __init__(self) -> None:
        self._path: str | None = None

    def Load(self, path: str | os.PathLike[str], /) -> None:  # noqa: N802 - ONNX Runtime's own name
        """Choose the file. Raises `NoSuchFile`; an invalid file is reported by the first run."""
        absolute = os.path.abspath(os.fsdecode(path))
        if not os.path.isfile(absolute):
            raise NoSuchFile(f"There is no LoRA adapter file {os.fsdecode(path)}.", details={"path": absolute})
        self._path = absolute

    @property
    def path(self) -> str:
        """The absolute path. Raises an error that is also a `RuntimeError` before `Load`."""
        if self._path is None:
            raise RemoteRuntimeError("The LoraAdapter is empty.", fix="Call its Load(path) first.")
        return self._path


class RunOptions(HasFields):
    """Configuration of single runs, with the names, defaults and error classes of ``onnxruntime.RunOptions``."""

    __slots__ = ("_adapters", "_config_entries", "_flag")

    log_severity_level = Field(-1, as_int32, "0 verbose, 1 info, 2 warning, 3 error, 4 fatal; -1 the default.")
    log_verbosity_level = Field(0, as_int32, "Verbosity of verbose logs in debug builds.")
    logid = Field("", as_text, "Name of this run in log lines.")
    only_execute_path_to_fetches = Field(False, as_bool, "Execute only nodes that the fetched outputs need.")

    def __init__(self) -> None:
        super().__init__()
        self._config_entries: dict[str, str] = {}
        self._adapters: list[str] = []
        self._flag = TerminateFlag()

    def copy(self) -> RunOptions:
        """The same settings, for one run that can be stopped alone."""
        twin = RunOptions()
        twin.take_fields(self)
        twin._config_entries.update(self._config_entries)
        twin._adapters.extend(self._adapters)
        twin._flag.assign(self.terminate)
        return twin

    @property
    def terminate(self) -> bool:
        """Set to ``True`` from any thread to stop the runs that use these options, and all later ones."""
        return self._flag.terminate

    @terminate.setter
    def terminate(self, value: Any) -> None:
        self._flag.assign(as_bool("terminate", value))

    def add_terminate_listener(self, listener: Callable[[bool], None]) -> Callable[[], None]:
        """See `TerminateFlag`."""
        return self._flag.add_terminate_listener(listener)

    def add_run_config_entry(self, key: str, value: str, /) -> None:
        """Set one configuration entry; a later one for the same key replaces it."""
        add_entry(self._config_entries, key, value)

    def get_run_config_entry(self, key: str, /) -> str:
        """The value of an entry that was added; an error that is also a `RuntimeError` if there is none."""
        return get_entry(self._config_entries, key, "RunOptions")

    def add_active_adapter(self, adapter: LoraAdapter, /) -> None:
        """Run with the parameters of a LoRA adapter; several may be active at once."""
        if not isinstance(adapter, LoraAdapter):
            raise wrong_type("adapter", adapter, "a qnnbridge.LoraAdapter")
        self._adapters.append(adapter.path)

    def to_spec(self) -> RunSpec:
        """The options sent with a run."""
        options = self.changed_fields()
        if self.terminate:
            options["terminate"] = True
        if self._adapters:
            options["active_adapters"] = list(self._adapters)
        return RunSpec(options=options, config_entries=dict(self._config_entries))


def coerce_session_options(options: object, *, providers_given: bool = False) -> SessionOptions:
    """Our `SessionOptions` for the application's argument: ours as it is, ``None``, or onnxruntime's own.

    providers_given: the session got ``providers=``, which take precedence over those inside the options. Without,
    options of onnxruntime that hold providers are refused, because they cannot be read from there.
    """
    if isinstance(options, SessionOptions):
        return options
    if options is None:
        return SessionOptions()
    _require_foreign(options, "SessionOptions", "sess_options")
    has_providers = getattr(options, "has_providers", None)
    if not providers_given and has_providers is not None and has_providers():
        raise errors.OptionError(
            "The execution providers inside this onnxruntime.SessionOptions cannot be read.",
            cause="ONNX Runtime tells that there are some, and not which.",
            fix="Pass providers= and provider_options= to InferenceSession, or use qnnbridge.SessionOptions.",
        )
    warn_application(
        "From an onnxruntime.SessionOptions only attributes and known configuration entries can be read; free "
        "dimension overrides, initializers and custom op libraries in it are lost. If you set any, create the "
        "options with qnnbridge.SessionOptions().",
        UserWarning,
    )
    from qnnbridge_protocol.config_keys import SESSION_KEYS

    ours = SessionOptions()
    ours.take_fields(options)
    for key, value in _entries(getattr(options, "get_session_config_entry"), sorted(SESSION_KEYS)):  # noqa: B009
        ours.add_session_config_entry(key, value)
    return ours


def coerce_run_options(options: object) -> RunOptions:
    """Our `RunOptions` for the application's argument: ours as it is, ``None``, or onnxruntime's own.

    Those of onnxruntime are read once: a later ``terminate = True`` on them is not seen.
    """
    if isinstance(options, RunOptions):
        return options
    if options is None:
        return RunOptions()
    _require_foreign(options, "RunOptions", "run_options")
    from qnnbridge_protocol.config_keys import QNN_RUN_KEYS, RUN_KEYS

    ours = RunOptions()
    ours.take_fields(options)
    ours.terminate = getattr(options, "terminate", False)
    for key, value in _entries(getattr(options, "get_run_config_entry"), sorted(RUN_KEYS | QNN_RUN_KEYS)):  # noqa: B009
        ours.add_run_config_entry(key, value)
    return ours


def _require_foreign(options: object, name: str, argument: str) -> None:
    cls = type(options)
    if cls.__name__ != name or not cls.__module__.startswith("onnxruntime."):
        raise errors.RemoteTypeError(
            f"{argument} must be a {name} or None, not {cls.__name__}.", fix=f"Pass qnnbridge.{name}()."
        )


def _entries(get: Callable[[str], str], keys: Iterable[str]) -> list[tuple[str, str]]:
    def value(key: str) -> str | None:
        try:
            return get(key)
        except RuntimeError:  # ONNX Runtime's way to say that there is no such entry
            return None

    return [(key, text) for key in keys if (text := value(key)) is not None]


# --- what surrounds `run` in a session ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class RunArguments:
    """The arguments of `run` beside names and feeds.

    failed: the try on the fast path that came before. compared: whether the call is compared with the CPU; default
    as the session decides. counted: the part of the outputs that does not follow from padding; default all.
    """

    run_options: RunOptions | Any
    timeout: float | None
    retry: int | None
    on_deadline: OnDeadline
    failed: FastCallFailed | None = None
    compared: bool | None = None
    counted: Counted | None = None

    def check(self) -> None:
        """Raises `OptionError`."""
        check_call(self.timeout, self.retry, self.on_deadline)


_log = log_of("qnnbridge.session")


class RunVariants:
    """Base of a session, which has `run` and `run_values` and fills the fields."""

    run: Callable[..., list[Any]]
    run_values: Callable[..., list[Any]]
    _remote: RemoteSession
    _known: KnownCalls
    _run_repeated: Callable[..., tuple[list[Any] | None, FastCallFailed | None]]
    _run_values: Callable[..., list[Any]]
    # Whether calls may take the fast path.
    _quick = True
    _options: SessionOptions
    _inputs: list[NodeArg]
    _outputs: list[NodeArg]
    _overridable: list[NodeArg]
    _output_names: list[str]
    _checker: FeedChecker
    _background: Background
    _timeout: float | None

    def get_inputs(self) -> list[NodeArg]:
        """Name, type and shape of each input."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Name, type and shape of each output."""
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that may be given as inputs."""
        return list(self._overridable)

    def get_modelmeta(self) -> ModelMetadata:
        """The metadata of the model file."""
        return ModelMetadata(self._remote.info.modelmeta)

    def get_providers(self) -> list[str]:
        """The session's execution providers. `placement` says which of them runs the nodes."""
        return list(self._remote.info.providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options of each provider, with the defaults that the host filled in."""
        return {name: dict(options) for name, options in self._remote.info.provider_options.items()}

    def get_session_options(self) -> SessionOptions:
        return self._options

    @property
    def placement(self) -> Placement:
        """Number of nodes on QNN and on the CPU, and why."""
        return self._remote.info.placement

    @property
    def cache(self) -> CacheStatus:
        """Whether the session was made from a compiled model of the cache, and why not."""
        return self._remote.cache_status

    @property
    def fixed(self) -> tuple[str, ...]:
        """Rewrites that were applied to the model (``fix=``), a line each."""
        return self._remote.fixed

    @property
    def generation(self) -> int:
        """Number of host processes that this session has used."""
        return self._remote.generation

    @property
    def host(self) -> Host:
        return self._remote.host

    def get_profiling_start_time_ns(self) -> int:
        """Nanoseconds, on the host's clock."""
        return self._remote.info.profiling_start_time_ns

    # --- running ---

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
        """Run in the background and call ``callback(results, user_data, error_text)`` from another thread.

        As in ONNX Runtime, an invalid input type is raised here, and every other error goes to the callback.
        `timeout` counts from this call, not from the start of the run.
        """
        check_call(timeout, retry, on_deadline)
        deadline = deadline_after(self._timeout if timeout is None else timeout)
        output_names, input_feed = self.arguments_now(output_names, input_feed)
        try:
            self._checker.check(input_feed)
        except RemoteError:
            raise
        except BridgeError:
            pass  # the run finds it again

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
            except Exception:  # noqa: BLE001 - it would be lost otherwise
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
        """Like `run`, with `OrtValue` in and out."""
        refuse_at_the_end()
        from qnnbridge._ort_value import OrtValue

        feed = {name: value.value for name, value in input_dict_ort_values.items()}
        declared = {node.name: node.type for node in self._outputs}
        names = self._names(output_names, feed)
        values = self.run_values(names, feed, run_options, timeout=timeout, retry=retry, on_deadline=on_deadline)
        return [OrtValue(v, declared=declared[n]) for n, v in zip(names or self._output_names, values, strict=True)]

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
        """`run_values` for a binding, whose values may lie in shared memory.

        Args:
            outputs: values for results, in the order of the names; ``None`` for a new one.
        """
        refuse_at_the_end()
        from qnnbridge._io_binding import BoundValues

        if run_options is not None or not self._quick:
            limits: dict[str, Any] = {"timeout": timeout, "retry": retry, "on_deadline": on_deadline}
            return self.run_values(output_names, self._checker.complete(inputs), run_options, **limits)
        failed = None
        try:
            check_call(timeout, retry, on_deadline)
            names = tuple(output_names)
            bound = BoundValues(self.host, inputs, outputs)
            try:
                results, failed = self._run_repeated(names, bound.feed, bound.wish, timeout, retry, on_deadline)
                if results is None:
                    how = RunArguments(None, timeout, retry, on_deadline, failed)
                    results = self._run_values(names, self._checker.complete(inputs), how)
                    self._known.learn(names, bound.feed, results)
                return results
            except (StateLost, DeadlineExceeded) as error:
                if failed is None or failed.in_place:
                    bound.lose(error)
                raise
        except BridgeError as error:
            raise as_onnxruntime(error) from None

    def _names(self, output_names: Any, feed: Any) -> Names:
        """The names of outputs, read once: a generator has them once."""
        try:
            return requested_names(output_names)
        except Exception:
            self._checker.require_all(feed)  # what ONNX Runtime looks at first
            raise

    def arguments_now(self, output_names: Any, input_feed: Any) -> tuple[Names, Any]:
        """Names and feed for a later `run`: what becomes of the application's list and map does not change them."""
        names = self._names(output_names, input_feed)
        return names, dict(input_feed) if isinstance(input_feed, Mapping) else input_feed

    def io_binding(self) -> IOBinding:
        """An empty binding for `run_with_iobinding`."""
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
        """Run with bound inputs; results go into the bound outputs. Keywords as for `run`."""
        if iobinding.session is not self:
            # ONNX Runtime's own words.
            raise RemoteValueError("IOBinding must be used with the session that created it.")
        iobinding.run(run_options, timeout=timeout, retry=retry, on_deadline=on_deadline)


# What ONNX Runtime's Python takes for a list of names although it is no sequence.
_ITERATED = (types.GeneratorType, frozenset, set)
_ITERATED_EXACTLY: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()), map, zip)
_NO_SEQUENCES = (str, bytes, bytearray, dict, types.MappingProxyType)


class _NoOutputs(tuple[str, ...]):
    """What a generator of nothing asks for. A plain ``()`` that is read again would ask for all outputs."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return True


_NO_OUTPUTS = _NoOutputs()


def requested_names(output_names: Any) -> Names:
    """The names of outputs as an application gives them, read once: ``None`` for all.

    Raises `RemoteTypeError` for what ONNX Runtime's Python does not take for a list of names.
    """
    if not output_names:
        return None
    given = type(output_names)
    if not issubclass(given, (list, tuple)):
        sequence = hasattr(given, "__getitem__") and hasattr(given, "__len__")
        sequence = sequence and not issubclass(given, _NO_SEQUENCES)
        if not (sequence or issubclass(given, _ITERATED) or given in _ITERATED_EXACTLY):
            raise RemoteTypeError(
                f"output_names is {output_names!r:.100} ({given.__name__}), and no list of names.",
                fix='Give a list: ["name"], or None for all outputs.',
            )
    return tuple([checked_name(name, "Names of outputs") for name in tuple(output_names)]) or _NO_OUTPUTS


def check_call(timeout: float | None, retry: int | None, on_deadline: str) -> None:
    """Raises `OptionError` early for errors that would otherwise show too late."""
    deadline_after(timeout)
    if retry is not None and (isinstance(retry, bool) or not isinstance(retry, int) or retry < 0):
        raise OptionError(f"retry={retry!r} is no number of repetitions.", fix="Give 0, 1 or more.")
    if on_deadline not in ("raise", "kill"):
        raise OptionError(f"on_deadline={on_deadline!r} is not known.", fix="Give 'raise' or 'kill'.")


# --- a model's metadata, with the attributes of ONNX Runtime's; plain data, not changed afterwards ----------


class NodeArg:
    """An input, an output or an overridable initializer of a model."""

    __slots__ = ("_info",)

    def __init__(self, info: NodeInfo) -> None:
        self._info = info

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def type(self) -> str:
        """As ONNX Runtime writes it: ``tensor(float)``, ``seq(tensor(int64))``."""
        return self._info.type

    @property
    def shape(self) -> list[int | str | None]:
        """One entry per dimension: a number, a name, or ``None``. Empty also where the model gives no shape."""
        return list(self._info.shape or ())

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return self._info == other._info if isinstance(other, NodeArg) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._info)


class ModelMetadata:
    """The metadata of the model's author."""

    __slots__ = (
        "custom_metadata_map",
        "description",
        "domain",
        "graph_description",
        "graph_name",
        "producer_name",
        "version",
    )

    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        """data: `SessionInfo.modelmeta`. Unknown keys are those of a newer host and are ignored."""
        known = data or {}
        self.producer_name = str(known.get("producer_name", ""))
        self.graph_name = str(known.get("graph_name", ""))
        self.graph_description = str(known.get("graph_description", ""))
        self.domain = str(known.get("domain", ""))
        self.description = str(known.get("description", ""))
        self.version = int(known.get("version", 0))
        self.custom_metadata_map: dict[str, str] = dict(known.get("custom_metadata_map", {}))
