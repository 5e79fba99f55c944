"""What lies around: environment variables that matter, folders that are written to, the C++ runtime, and what
qnnbridge remembers of earlier days."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any, Final

from qnnbridge_tools.doctor.facts import Answer, Crash, Place, State
from qnnbridge_tools.doctor.machine import Machine, paths_of, text_of

KNOWN_VARIABLES: Final = (
    "QNNBRIDGE_ALLOW_UNKNOWN_OPTIONS",
    "QNNBRIDGE_CACHE",
    "QNNBRIDGE_CACHE_DIR",
    "QNNBRIDGE_CACHE_MAX_BYTES",
    "QNNBRIDGE_CACHE_MIN_MODEL_BYTES",
    "QNNBRIDGE_CONFIG",
    "QNNBRIDGE_CONTEXT_CHECK",
    "QNNBRIDGE_DEBUG",
    "QNNBRIDGE_DROPIN",
    "QNNBRIDGE_DROPIN_PROVIDER",
    "QNNBRIDGE_HOST",
    "QNNBRIDGE_HOST_PYTHON",
    "QNNBRIDGE_REPORT_DIR",
    "QNNBRIDGE_RUNTIME_DIR",
    "QNNBRIDGE_SHARED_MEMORY",
    "QNNBRIDGE_STATE_DIR",
    "QNNBRIDGE_VERBOSE",
)
FOR_DEVELOPERS: Final = ("QNNBRIDGE_LAB_", "QNNBRIDGE_REQUIRE_", "QNNBRIDGE_TEST_")
SHOWN_VARIABLES: Final = (
    *KNOWN_VARIABLES,
    "ADSP_LIBRARY_PATH",
    "CONDA_PREFIX",
    "LD_LIBRARY_PATH",
    "LIBNATIVE_CONFIG",
    "ORT_QNN_CUSTOM_OP_DOMAINS",
    "ORT_QNN_ENABLE_CPU_BACKEND",
    "PROCESSOR_ARCHITECTURE",
    "PROCESSOR_ARCHITEW6432",
    "PROCESSOR_IDENTIFIER",
    "PYTHONHOME",
    "PYTHONPATH",
    "QAIRT_SDK_ROOT",
    "QNN_SDK_ROOT",
    "SNPE_ROOT",
    "VIRTUAL_ENV",
)
"""The allow-list of what a snapshot holds."""

VC_RUNTIME: Final = ("MSVCP140.dll", "MSVCP140_1.dll", "VCRUNTIME140.dll", "VCRUNTIME140_1.dll")
"""What onnxruntime needs on Windows; Python itself brings the last two."""

CRASH_WINDOW_S: Final = 24 * 3600.0
_MAX_CRASHES: Final = 10
_HUNG: Final = re.compile(r"(?:the host|it) (?:did not|closed its|stopped in|process is stopped)", re.IGNORECASE)
"""Reasons for which qnnbridge ends a host that is at fault itself."""


def survey_environment(machine: Machine) -> dict[str, str]:
    upper = {name.upper(): value for name, value in machine.environ.items()}
    return {name: upper[name] for name in SHOWN_VARIABLES if upper.get(name)}


def survey_unknown_variables(machine: Machine) -> tuple[str, ...]:
    """Variables that look like ours and are none: a typing error changes nothing, silently."""
    return tuple(
        sorted(
            name
            for name in machine.environ
            if name.upper().startswith("QNNBRIDGE_")
            and name.upper() not in KNOWN_VARIABLES
            and not name.upper().startswith(FOR_DEVELOPERS)
        )
    )


def survey_unusable_values(machine: Machine) -> tuple[str, ...]:
    from qnnbridge_host.cache.settings import cache_settings

    return cache_settings(machine.environ).problems


def survey_places(machine: Machine, host: Answer | None, packages_folder: str | None) -> tuple[Place, ...]:
    places = []
    if host is not None:
        folder = packages_folder or host.prefix
        places.append(Place("host packages", folder, network=machine.is_network(folder)))
    for what, folder in (("cache", cache_folder(machine)), ("state", state_folder(machine))):
        places.append(
            Place(what, folder, machine.is_writable(folder), machine.is_network(folder), machine.free_bytes(folder))
        )
    return tuple(places)


def state_folder(machine: Machine) -> str:
    return _folder(machine, "QNNBRIDGE_STATE_DIR", "XDG_STATE_HOME", (".local", "state"), ())


def cache_folder(machine: Machine) -> str:
    return _folder(machine, "QNNBRIDGE_CACHE_DIR", "XDG_CACHE_HOME", (".cache",), ("Cache",))


def _folder(machine: Machine, variable: str, xdg: str, unix: tuple[str, ...], windows: tuple[str, ...]) -> str:
    """Where platformdirs puts it, on any system."""
    named = machine.environ.get(variable)
    if named:
        return named
    paths = paths_of(machine.system)
    if machine.system == "Windows":
        base = machine.environ.get("LOCALAPPDATA") or paths.join(machine.home, "AppData", "Local")
        return str(paths.join(base, "qnnbridge", *windows))
    return str(paths.join(machine.environ.get(xdg) or paths.join(machine.home, *unix), "qnnbridge"))


def survey_vc_runtime(machine: Machine, host: Answer) -> tuple[str, ...]:
    """Libraries of the Visual C++ runtime that the host's interpreter would not find."""
    if machine.system != "Windows":
        return ()
    paths = paths_of(machine.system)
    root = next((v for n, v in machine.environ.items() if n.upper() == "SYSTEMROOT"), r"C:\Windows")
    program = paths.dirname(host.base_executable or host.executable)
    capi = [paths.join(folder, "onnxruntime", "capi") for folder in host.path]
    places = [paths.join(root, "System32"), program, *capi]
    here = {name.lower() for place in places for name in machine.names(place)}
    return tuple(name for name in VC_RUNTIME if name.lower() not in here)


# --- what qnnbridge remembers ----------------------------------------------------------------------------


def survey_state(machine: Machine) -> State:
    folder = state_folder(machine)
    paths = paths_of(machine.system)
    cached = machine.cache(cache_folder(machine))
    return State(
        cache_entries=cached.entries,
        cache_bytes=cached.bytes,
        cache_damaged=cached.damaged,
        cache_bad_keys=cached.bad_keys,
        quarantined=_quarantined(machine, paths.join(folder, "quarantine.json")),
        crashes=_crashes(machine, paths.join(folder, "crashes")),
    )


def _quarantined(machine: Machine, path: str) -> tuple[str, ...]:
    ttl_s = 24 * 3600.0
    found: list[str] = []
    for account in _read_json(machine, path).get("accounts", ()):
        since = account.get("since") if isinstance(account, dict) else None
        if isinstance(since, (int, float)) and machine.now() - since < ttl_s:
            found.append(str(account.get("model") or account.get("fingerprint", "")[:12]))
    return tuple(found)


def _crashes(machine: Machine, folder: str) -> tuple[Crash, ...]:
    """The reports of the last day, newest first."""
    paths = paths_of(machine.system)
    found: list[Crash] = []
    for name in sorted(machine.names(folder), reverse=True):
        if not name.endswith(".json") or len(found) >= _MAX_CRASHES:
            continue
        told = _read_json(machine, paths.join(folder, name))
        age = _age(machine, told.get("when"))
        if age is None or age > CRASH_WINDOW_S or _was_wanted(told.get("killed_because")):
            continue
        exit_told = told.get("exit")
        diagnoses = told.get("diagnoses")
        first = diagnoses[0] if isinstance(diagnoses, list) and diagnoses else {}
        found.append(
            Crash(
                id=str(told.get("id", name[:-5])),
                age_s=age,
                exit=str(exit_told.get("name", "")) if isinstance(exit_told, dict) else "",
                phase=str(told.get("phase", "")),
                models=tuple(str(model) for model in told.get("models", ()) if model),
                cause=str(first.get("cause", "")) if isinstance(first, dict) else "",
            )
        )
    return tuple(found)


def _was_wanted(killed_because: object) -> bool:
    """Whether qnnbridge ended the host for a reason of the application's (Ctrl+C, a deadline), not for a hang."""
    return isinstance(killed_because, str) and _HUNG.match(killed_because) is None


def _age(machine: Machine, when: object) -> float | None:
    try:
        return machine.now() - datetime.datetime.fromisoformat(str(when)).timestamp()
    except ValueError:
        return None


def _read_json(machine: Machine, path: str) -> dict[str, Any]:
    try:
        told = json.loads(text_of(machine, path) or "{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
