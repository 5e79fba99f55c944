"""Options and arguments of a run, and a model's metadata, with the same attributes as in ONNX Runtime's classes.

Several runs may use one `RunOptions` at once, and another thread may change it: listeners (`TerminateRelay`) pass
``terminate = True`` to these runs. The file of a LoRA adapter is read once, in the host; a run sends only its path.

An options object of onnxruntime can only exist if the application imported that package, so this module does not
import it. ONNX Runtime has no function that lists configuration entries, so the known keys (`config_keys`) are read
one by one. Options that cannot be read cause a warning, except for providers, which raise an error.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from qnnbridge._callers import warn_application
from qnnbridge._options.fields import Field, HasFields, as_bool, as_int32, as_text, checked_name, wrong_type
from qnnbridge._session_options import SessionOptions, add_entry, get_entry
from qnnbridge._threads import TerminateFlag
from qnnbridge_protocol import errors
from qnnbridge_protocol.errors import NoSuchFile, RemoteRuntimeError, RemoteTypeError
from qnnbridge_protocol.shown import with_article
from qnnbridge_protocol.specs import NodeInfo, RunSpec

if TYPE_CHECKING:
    from qnnbridge._fastpath.call import Names
    from qnnbridge._session_options import SessionOptions


class LoraAdapter:
    """The file of a LoRA adapter. Like ``onnxruntime.LoraAdapter``, the class has one method, `Load`."""

    def __init__(self) -> None:
        self._path: str | None = None

    def Load(self, path: str | os.PathLike[str], /) -> None:  # noqa: N802 - ONNX Runtime's own name
        """Set the path of the adapter file. Raise `NoSuchFile` if the file is missing. The first run with an
        invalid file raises the error."""
        absolute = os.path.abspath(os.fsdecode(path))
        if not os.path.isfile(absolute):
            raise NoSuchFile(f"There is no LoRA adapter file {os.fsdecode(path)}.", details={"path": absolute})
        self._path = absolute

    @property
    def path(self) -> str:
        """Absolute path of the file. Before `Load`, raise an error that is also a `RuntimeError`."""
        if self._path is None:
            raise RemoteRuntimeError("The LoraAdapter has no file.", fix="Call Load(path) first.")
        return self._path


class RunOptions(HasFields):
    """Options of one or more runs, with the names, defaults and error classes of ``onnxruntime.RunOptions``."""

    __slots__ = ("_adapters", "_config_entries", "_flag")

    log_severity_level = Field(-1, as_int32, "0: verbose, 1: info, 2: warning, 3: error, 4: fatal, -1: default.")
    log_verbosity_level = Field(0, as_int32, "Verbosity of verbose logs in debug builds.")
    logid = Field("", as_text, "Name of this run in log lines.")
    only_execute_path_to_fetches = Field(False, as_bool, "Execute only nodes that the fetched outputs need.")

    def __init__(self) -> None:
        super().__init__()
        self._config_entries: dict[str, str] = {}
        self._adapters: list[str] = []
        self._flag = TerminateFlag()

    def copy(self) -> RunOptions:
        """Return a copy of the settings for one run, so that stopping this run does not stop other runs."""
        twin = RunOptions()
        twin.take_fields(self)
        twin._config_entries.update(self._config_entries)
        twin._adapters.extend(self._adapters)
        twin._flag.assign(self.terminate)
        return twin

    @property
    def terminate(self) -> bool:
        """Whether to stop all current and later runs with these options. Any thread may set this property."""
        return self._flag.terminate

    @terminate.setter
    def terminate(self, value: Any) -> None:
        self._flag.assign(as_bool("terminate", value))

    def add_terminate_listener(self, listener: Callable[[bool], None]) -> Callable[[], None]:
        """Call `listener` when `terminate` is assigned; see `TerminateFlag.add_terminate_listener`."""
        return self._flag.add_terminate_listener(listener)

    def add_run_config_entry(self, key: str, value: str, /) -> None:
        """Set one configuration entry, or replace the entry with the same key."""
        add_entry(self._config_entries, key, value)

    def get_run_config_entry(self, key: str, /) -> str:
        """Return the value of an entry. If no entry has the key, raise an error that is also a `RuntimeError`."""
        return get_entry(self._config_entries, key, "RunOptions")

    def add_active_adapter(self, adapter: LoraAdapter, /) -> None:
        """Use the parameters of a LoRA adapter in the run. Several adapters may be active at the same time."""
        if not isinstance(adapter, LoraAdapter):
            raise wrong_type("adapter", adapter, "a qnnbridge.LoraAdapter")
        self._adapters.append(adapter.path)

    def to_spec(self) -> RunSpec:
        """Return the options as a record that is sent with a run."""
        options = self.changed_fields()
        if self.terminate:
            options["terminate"] = True
        if self._adapters:
            options["active_adapters"] = list(self._adapters)
        return RunSpec(options=options, config_entries=dict(self._config_entries))


def coerce_session_options(options: object, *, providers_given: bool = False) -> SessionOptions:
    """Return qnnbridge's `SessionOptions` for an argument of this class, of onnxruntime's class, or ``None``.

    providers_given: whether the session has ``providers=``, which replace the providers inside the options. If not,
    raise an error for options of onnxruntime that contain providers, because the providers cannot be read.
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
            cause="ONNX Runtime reports that the options contain providers, but not which ones.",
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
    """Return qnnbridge's `RunOptions` for an argument of this class, of onnxruntime's class, or ``None``.

    Options of onnxruntime are read only here: setting ``terminate = True`` on them later has no effect.
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
            f"{argument} must be {with_article(name)} or None, not {cls.__name__}.", fix=f"Pass qnnbridge.{name}()."
        )


def _entries(get: Callable[[str], str], keys: Iterable[str]) -> list[tuple[str, str]]:
    def value(key: str) -> str | None:
        try:
            return get(key)
        except RuntimeError:  # raised by ONNX Runtime for an entry that was not added
            return None

    return [(key, text) for key in keys if (text := value(key)) is not None]


# Types that are not sequences, but that ONNX Runtime's Python code accepts as a list of names.
_ITERATED = (types.GeneratorType, frozenset, set)
_ITERATED_EXACTLY: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()), map, zip)
_NO_SEQUENCES = (str, bytes, bytearray, dict, types.MappingProxyType)


class _NoOutputs(tuple[str, ...]):
    """Empty list of names (from an empty generator), which requests no output.

    The object is truthy, because `requested_names` treats an ordinary empty tuple as a request for all outputs.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        return True


_NO_OUTPUTS = _NoOutputs()


def requested_names(output_names: Any) -> Names:
    """Return the names of the requested outputs from the application's argument; ``None`` for all outputs. Iterate
    over the argument only once.

    Raise `RemoteTypeError` for an argument that ONNX Runtime's Python code does not accept as a list of names.
    """
    if not output_names:
        return None
    given = type(output_names)
    if not issubclass(given, (list, tuple)):
        sequence = hasattr(given, "__getitem__") and hasattr(given, "__len__")
        sequence = sequence and not issubclass(given, _NO_SEQUENCES)
        if not (sequence or issubclass(given, _ITERATED) or given in _ITERATED_EXACTLY):
            raise RemoteTypeError(
                f"output_names is {output_names!r:.100} ({given.__name__}), not a list of names.",
                fix='Pass a list: ["name"], or None for all outputs.',
            )
    return tuple([checked_name(name, "Names of outputs") for name in tuple(output_names)]) or _NO_OUTPUTS


# --- a model's metadata, with the attributes of ONNX Runtime's classes; plain data, never changed ----------


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
        """Type in ONNX Runtime's notation: ``tensor(float)``, ``seq(tensor(int64))``."""
        return self._info.type

    @property
    def shape(self) -> list[int | str | None]:
        """One entry per dimension: a number, a name, or ``None``. The list is empty for a scalar, and if the model
        declares no shape."""
        return list(self._info.shape or ())

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return self._info == other._info if isinstance(other, NodeArg) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._info)


class ModelMetadata:
    """Metadata that the model's author stored in the file."""

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
        """Read `SessionInfo.modelmeta`. Ignore unknown keys, which a newer host may send."""
        known = data or {}
        self.producer_name = str(known.get("producer_name", ""))
        self.graph_name = str(known.get("graph_name", ""))
        self.graph_description = str(known.get("graph_description", ""))
        self.domain = str(known.get("domain", ""))
        self.description = str(known.get("description", ""))
        self.version = int(known.get("version", 0))
        self.custom_metadata_map: dict[str, str] = dict(known.get("custom_metadata_map", {}))
