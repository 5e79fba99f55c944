"""Builds ``onnxruntime.RunOptions`` from what came over the wire.

A built object belongs to one run. `Adapters` belongs to one session and may be used by any thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

from qnnbridge_host.engine import config_keys, qnn_checks
from qnnbridge_host.engine.qnn_options import RUN_OPTIONS
from qnnbridge_host.engine.session_options import Kind, set_attribute
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.specs import RunSpec

ATTRIBUTES: Mapping[str, Kind] = {
    "log_severity_level": "int",
    "log_verbosity_level": "int",
    "logid": "str",
    "only_execute_path_to_fetches": "bool",
    "terminate": "bool",
}

# Option of a `RunSpec`: paths of the LoRA adapter files that ``RunOptions.add_active_adapter`` was called with.
ADAPTERS = "active_adapters"


class Adapters:
    """LoRA adapters, loaded once and kept as long as their file is the same. Any thread."""

    def __init__(self, ort: Any) -> None:
        self._ort = ort
        self._lock = threading.Lock()
        self._loaded: dict[str, tuple[tuple[int, int], Any]] = {}

    def get(self, path: str) -> Any:
        """The adapter in a file."""
        try:
            stat = os.stat(path)
        except OSError:
            raise OptionError(f"There is no LoRA adapter file {path}.", details={"option": ADAPTERS}) from None
        stamp = (stat.st_mtime_ns, stat.st_size)
        with self._lock:
            known = self._loaded.get(path)
            if known is not None and known[0] == stamp:
                return known[1]
            adapter = self._ort.LoraAdapter()
            adapter.Load(path)
            self._loaded[path] = (stamp, adapter)
            return adapter


def build(ort: Any, run: RunSpec, adapters: Adapters, qnn_version: tuple[int, ...]) -> Any:
    """RunOptions as described, or `OptionError`."""
    options = ort.RunOptions()
    for name, value in run.options.items():
        if name == ADAPTERS:
            for path in value:
                options.add_active_adapter(adapters.get(str(path)))
        else:
            set_attribute(ort, options, name, value, ATTRIBUTES, {})
    for key, text in checked_entries(run.config_entries, qnn_version).items():
        options.add_run_config_entry(key, text)
    return options


def checked_entries(entries: Mapping[str, Any], qnn_version: tuple[int, ...]) -> dict[str, str]:
    """The configuration entries of a run as text."""
    for_qnn = {key: value for key, value in entries.items() if key.startswith("qnn.")}
    checked = qnn_checks.run_options(for_qnn, qnn_version)
    for key, value in entries.items():
        if key not in for_qnn:
            config_keys.refuse_misspelt(key, [*config_keys.RUN_KEYS, *RUN_OPTIONS], "run configuration key")
            checked[key] = value if isinstance(value, str) else str(value)
    return checked
