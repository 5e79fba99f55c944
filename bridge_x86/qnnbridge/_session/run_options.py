"""`RunOptions`, `LoraAdapter`, and the options objects of a real onnxruntime turned into ours.

One `RunOptions` may be used by several runs at once and changed from another thread: ``terminate = True``
reaches the runs that use it through listeners (`TerminateRelay`). The file of a LoRA adapter is read in the host,
once; its path travels with a run.

An options object of onnxruntime can only exist if the application imported that package, so nothing is
imported. ONNX Runtime offers no way to list configuration entries: its known keys (`config_keys`) are read
one by one. Unreadable parts are either refused (providers) or announced with a warning.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from qnnbridge._option_fields import Field, HasFields, as_bool, as_int32, as_text, wrong_type
from qnnbridge._session_options import SessionOptions, add_entry, get_entry
from qnnbridge._threads import TerminateFlag
from qnnbridge_protocol import errors
from qnnbridge_protocol.errors import NoSuchFile, RemoteRuntimeError
from qnnbridge_protocol.specs import RunSpec


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
        for name, value in self.changed_fields().items():
            setattr(twin, name, value)
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


O = TypeVar("O", bound=HasFields)  # noqa: E741 - options


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
    warnings.warn(
        "From an onnxruntime.SessionOptions only attributes and known configuration entries can be read; free "
        "dimension overrides, initializers and custom op libraries in it are lost. Use qnnbridge.SessionOptions "
        "if you set any.",
        stacklevel=3,
    )
    from qnnbridge_protocol.config_keys import SESSION_KEYS

    ours = _copy_fields(options, SessionOptions())
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

    ours = _copy_fields(options, RunOptions())
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


def _copy_fields(source: object, target: O) -> O:
    for name, field in type(target).fields().items():
        # An older onnxruntime lacks the newer attributes.
        value = getattr(source, name, field.default)
        if value != field.default:
            setattr(target, name, value)
    return target


def _entries(get: Callable[[str], str], keys: Iterable[str]) -> list[tuple[str, str]]:
    def value(key: str) -> str | None:
        try:
            return get(key)
        except RuntimeError:  # ONNX Runtime's way to say that there is no such entry
            return None

    return [(key, text) for key in keys if (text := value(key)) is not None]
