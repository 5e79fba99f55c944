"""`RunOptions`: what ``onnxruntime.RunOptions`` holds, without ONNX Runtime.

One instance may be used by several runs at once and changed from another thread: ``terminate = True`` reaches the
runs that use it through listeners, called by the assigning thread. A run first adds its listener and then reads
`terminate`, so that no assignment falls between the two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from qnnbridge._lora import LoraAdapter
from qnnbridge._option_fields import Field, HasFields, as_bool, as_int32, as_text, wrong_type
from qnnbridge._session_options import add_entry, get_entry
from qnnbridge_protocol.specs import RunSpec


class RunOptions(HasFields):
    """Configuration of single runs, with the names, defaults and error classes of ``onnxruntime.RunOptions``."""

    __slots__ = ("_adapters", "_config_entries", "_listeners", "_lock", "_terminate")

    log_severity_level = Field(-1, as_int32, "0 verbose, 1 info, 2 warning, 3 error, 4 fatal; -1 the default.")
    log_verbosity_level = Field(0, as_int32, "Verbosity of verbose logs in debug builds.")
    logid = Field("", as_text, "Name of this run in log lines.")
    only_execute_path_to_fetches = Field(False, as_bool, "Execute only nodes that the fetched outputs need.")

    def __init__(self) -> None:
        super().__init__()
        self._config_entries: dict[str, str] = {}
        self._adapters: list[str] = []
        self._terminate = False
        self._listeners: list[Callable[[bool], None]] = []
        self._lock = threading.Lock()

    def copy(self) -> RunOptions:
        """The same settings, for one run that is to be stopped by itself."""
        twin = RunOptions()
        for name, value in self.changed_fields().items():
            setattr(twin, name, value)
        twin._config_entries.update(self._config_entries)
        twin._adapters.extend(self._adapters)
        twin._terminate = self._terminate
        return twin

    @property
    def terminate(self) -> bool:
        """Set to ``True`` from any thread to stop the runs that use these options, and all later ones."""
        return self._terminate

    @terminate.setter
    def terminate(self, value: Any) -> None:
        flag = as_bool("terminate", value)
        with self._lock:
            self._terminate = flag
            listeners = list(self._listeners)
        # Outside the lock: a listener may send a frame or take locks of its own.
        for listener in listeners:
            listener(flag)

    def add_terminate_listener(self, listener: Callable[[bool], None]) -> Callable[[], None]:
        """Call `listener` with each value assigned to `terminate` from now on; it must not raise.

        Returns what removes it again.
        """
        with self._lock:
            self._listeners.append(listener)

        def remove() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return remove

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
        """What travels with a run."""
        options = self.changed_fields()
        if self._terminate:
            options["terminate"] = True
        if self._adapters:
            options["active_adapters"] = list(self._adapters)
        return RunSpec(options=options, config_entries=dict(self._config_entries))
