"""Environment variables, writable folders, the C++ runtime, and the stored state of qnnbridge: survey and checks.

The state consists of cache, quarantine, crash reports and the daemon.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from typing import Any, Final

from qnnbridge_protocol.shown import closest
from qnnbridge_tools.doctor import fixes
from qnnbridge_tools.doctor.facts import Crash, Facts, FolderFacts, PythonReport, SavedState
from qnnbridge_tools.doctor.findings import Finding, Remedy, SubjectCheck, finding
from qnnbridge_tools.doctor.fixes import set_variable, unset_variable
from qnnbridge_tools.doctor.machine import Machine, expanded, paths_of, text_of, variable_of

KNOWN_VARIABLES: Final = (
    "QNNBRIDGE_ALLOW_UNKNOWN_OPTIONS",
    "QNNBRIDGE_CACHE",
    "QNNBRIDGE_CACHE_DIR",
    "QNNBRIDGE_CACHE_MAX_BYTES",
    "QNNBRIDGE_CACHE_MIN_MODEL_BYTES",
    "QNNBRIDGE_CALLBACK_TIMEOUT",
    "QNNBRIDGE_CONFIG",
    "QNNBRIDGE_CONTEXT_CHECK",
    "QNNBRIDGE_VERIFY",
    "QNNBRIDGE_DEBUG",
    "QNNBRIDGE_DROPIN",
    "QNNBRIDGE_DROPIN_PROVIDER",
    "QNNBRIDGE_DROPIN_SIZES",
    "QNNBRIDGE_ENGINE",
    "QNNBRIDGE_EP_PATH",
    "QNNBRIDGE_GLOBAL_THREADS",
    "QNNBRIDGE_HOST",
    "QNNBRIDGE_HOST_PYTHON",
    "QNNBRIDGE_MODELS_DIR",
    "QNNBRIDGE_REPORT_DIR",
    "QNNBRIDGE_RUNTIME_DIR",
    "QNNBRIDGE_SHARED_MEMORY",
    "QNNBRIDGE_STATE_DIR",
    "QNNBRIDGE_VERBOSE",
)
# Prefixes of variables for the project's tests and labs, which users never set.
FOR_DEVELOPERS: Final = ("QNNBRIDGE_LAB_", "QNNBRIDGE_REQUIRE_", "QNNBRIDGE_TEST_")
# The allow-list of variables in a snapshot.
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

# Libraries that onnxruntime needs on Windows; Python contains the last two.
VC_RUNTIME: Final = ("MSVCP140.dll", "MSVCP140_1.dll", "VCRUNTIME140.dll", "VCRUNTIME140_1.dll")


def survey_environment(machine: Machine) -> dict[str, str]:
    """Return the variables of the allow-list that are set."""
    # Names of variables on Windows are not case-sensitive.
    upper = {name.upper(): value for name, value in machine.environ.items()}
    return {name: upper[name] for name in SHOWN_VARIABLES if upper.get(name)}


def survey_unknown_variables(machine: Machine) -> tuple[str, ...]:
    """Return unknown variables with qnnbridge's prefix: a misspelt variable is silently ignored."""
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
    """Describe environment variables that configure the cache and have invalid values."""
    from qnnbridge_protocol.settings import cache_settings

    return cache_settings(machine.environ).problems


def survey_places(
    machine: Machine, host: PythonReport | None, packages_folder: str | None
) -> tuple[FolderFacts, ...]:
    """Describe the folders of the host's packages, of the cache and of the state."""
    places = []
    if host is not None:
        folder = packages_folder or host.prefix
        # Only pip writes to this folder, so do not check whether it is writable.
        places.append(FolderFacts("host packages", folder, network=machine.is_network(folder)))
    for what, folder in (("cache", cache_folder(machine)), ("state", state_folder(machine))):
        places.append(
            FolderFacts(
                what, folder, machine.is_writable(folder), machine.is_network(folder), machine.free_bytes(folder)
            )
        )
    return tuple(places)


def state_folder(machine: Machine) -> str:
    """Return the folder of the quarantine and the crash reports."""
    named = machine.environ.get("QNNBRIDGE_STATE_DIR")
    return expanded(machine, named) if named else folder_of(machine, "XDG_STATE_HOME", (".local", "state"))


def cache_folder(machine: Machine) -> str:
    """Return the folder of the cache."""
    named = machine.environ.get("QNNBRIDGE_CACHE_DIR")
    return expanded(machine, named) if named else folder_of(machine, "XDG_CACHE_HOME", (".cache",), ("Cache",))


def folder_of(machine: Machine, xdg: str, unix: tuple[str, ...], windows: tuple[str, ...] = ()) -> str:
    """Return the folder that platformdirs would return on the given system.

    Args:
        machine: the computer.
        xdg: the variable that sets the base folder on Linux.
        unix: default base folder in the home folder.
        windows: subfolders on Windows.
    """
    paths = paths_of(machine.system)
    if machine.system == "Windows":
        base = machine.environ.get("LOCALAPPDATA") or paths.join(machine.home, "AppData", "Local")
        return str(paths.join(base, "qnnbridge", *windows))
    return str(paths.join(machine.environ.get(xdg) or paths.join(machine.home, *unix), "qnnbridge"))


def survey_vc_runtime(machine: Machine, host: PythonReport | None) -> tuple[str, ...]:
    """Return libraries of the Visual C++ runtime that the host's interpreter would not find."""
    if host is None or machine.system != "Windows":
        return ()
    paths = paths_of(machine.system)
    root = variable_of(machine, "SYSTEMROOT", r"C:\Windows")
    program = paths.dirname(host.base_executable or host.executable)
    capi = [paths.join(folder, "onnxruntime", "capi") for folder in host.path]
    # Search the program's folder, too: Python has its own VCRUNTIME140 there.
    places = [paths.join(root, "System32"), program, *capi]
    here = {name.lower() for place in places for name in machine.names(place)}
    return tuple(name for name in VC_RUNTIME if name.lower() not in here)


PREFIX: Final = "QNNBRIDGE_"
# Minimum similarity of a misspelt name to the right name. Names with one or two wrong letters are above this
# value; the different names CACHE_SIZE and CACHE_DIR have a similarity of 0.74.
_CLOSE: Final = 0.8


def find_variables(facts: Facts) -> Iterator[Finding]:
    """Yield findings about environment variables."""
    environment = facts.environment
    if environment.get("PYTHONHOME"):
        yield finding(
            "env.pythonhome",
            "PYTHONHOME is set",
            f"PYTHONHOME={environment['PYTHONHOME']}",
            fix=removal(facts, "PYTHONHOME"),
        )
    if environment.get("ORT_QNN_ENABLE_CPU_BACKEND", "") not in ("", "0"):
        yield finding(
            "env.cpu-backend",
            "ORT_QNN_ENABLE_CPU_BACKEND is set",
            f"ORT_QNN_ENABLE_CPU_BACKEND={environment['ORT_QNN_ENABLE_CPU_BACKEND']}",
            fix=removal(facts, "ORT_QNN_ENABLE_CPU_BACKEND"),
        )
    if facts.unknown_variables:
        first = facts.unknown_variables[0]
        close = _close_name(first)
        yield finding(
            "env.unknown-variable",
            f"{', '.join(facts.unknown_variables)} is not a variable of qnnbridge",
            "known: " + ", ".join(KNOWN_VARIABLES),
            fix=Remedy(f"Rename {first} to {close}.") if close else removal(facts, first),
        )
    if facts.unusable_values:
        name = facts.unusable_values[0].split("=")[0].split()[0]
        yield finding(
            "env.unusable-value",
            "a variable of qnnbridge has a value that cannot be used",
            *facts.unusable_values,
            fix=removal(facts, name, "Give it another value, or remove it"),
        )


def _close_name(name: str) -> str | None:
    """Return the most similar known variable, compared without the common prefix; ``None`` if none is similar
    enough.
    """
    known = {one.removeprefix(PREFIX): one for one in KNOWN_VARIABLES}
    close = closest(name.upper().removeprefix(PREFIX), known, _CLOSE)
    return known[close] if close else None


def removal(facts: Facts, name: str, words: str = "Remove it") -> Remedy:
    """Return the fix that removes a variable. words: beginning of the fix's text."""
    if facts.is_windows:
        words += (
            "; then open a new window. (If it is set for all users, run this as administrator, with 'Machine' "
            "instead of 'User'.)"
        )
    else:
        words += ", and also remove it from your shell's profile."
    return Remedy(words, unset_variable(facts, name))


ENVIRONMENT_CHECK = SubjectCheck("environment", find_variables)


# Maximum length of a path in characters; longer paths are reported. The value is below Windows' limit for a file
# (260) and the driver's limit for the path of a process.
LONGEST_PROGRAM: Final = 200
LEAST_FREE_BYTES: Final = 500 << 20
_FOLDER_VARIABLES: Final = {"cache": "QNNBRIDGE_CACHE_DIR", "state": "QNNBRIDGE_STATE_DIR"}


def find_paths(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the folders."""
    for place in facts.places:
        yield from (_host_folder if place.what == "host packages" else _own_folder)(facts, place)


def _host_folder(facts: Facts, place: FolderFacts) -> Iterator[Finding]:
    move = Remedy(
        "Create a host in a folder with a short ASCII path on a local disk.",
        fixes.setup_lines(facts, plain_folder=True),
    )
    program = facts.host.answer.executable if facts.host.answer else facts.host.path
    if facts.is_windows and not place.path.isascii():
        yield finding(
            "path.not-ascii",
            "the host's packages are in a folder whose name is not plain ASCII",
            place.path,
            fix=move,
        )
    # Check the longer path: the path of the libraries, or the path of the process that loads them.
    longest = max((place.path, program), key=len)
    if facts.is_windows and len(longest) > LONGEST_PROGRAM:
        yield finding(
            "path.too-long", "the host's path is too long", f"{len(longest)} characters: {longest}", fix=move
        )
    if place.network:
        yield finding("path.network", "the host's packages are on a network drive", place.path, fix=move)


def _own_folder(facts: Facts, place: FolderFacts) -> Iterator[Finding]:
    variable = _FOLDER_VARIABLES[place.what]
    folder = rf"C:\qnnbridge\{place.what}" if facts.is_windows else f"/var/tmp/qnnbridge-{place.what}"  # noqa: S108 - advice
    other = "Use another folder; then open a new window." if facts.is_windows else "Use another folder."
    elsewhere = Remedy(other, set_variable(facts, variable, folder))
    if not place.writable:
        yield finding(
            f"path.{place.what}-read-only",
            f"the {place.what} folder cannot be written to",
            place.path,
            fix=elsewhere,
        )
        # Skip the other checks: the fix replaces this folder.
        return
    if place.what != "cache":
        return
    if facts.is_windows and not place.path.isascii():
        yield finding(
            "path.cache-not-ascii", "the cache folder's name is not plain ASCII", place.path, fix=elsewhere
        )
    if place.network:
        yield finding("path.network", "the cache is on a network drive", place.path, fix=elsewhere)
    if place.free_bytes is not None and place.free_bytes < LEAST_FREE_BYTES:
        yield finding(
            "path.disk-full",
            "the disk of the cache is nearly full",
            f"{place.free_bytes >> 20} MB free in {place.path}",
            fix=Remedy(
                f"Free some space, limit the cache (QNNBRIDGE_CACHE_MAX_BYTES), or set {variable} to a folder "
                "on another disk.",
                ("qnnbridge cache prune",),
            ),
        )


def healthy_paths(facts: Facts) -> str | None:
    """Describe the cache's folder in one line."""
    cache = next((place for place in facts.places if place.what == "cache"), None)
    if cache is None:
        return None
    free = f", {cache.free_bytes / (1 << 30):.1f} GB free" if cache.free_bytes is not None else ""
    return f"cache {cache.path}{free}"


PATHS_CHECK = SubjectCheck("paths", find_paths, healthy_paths)


# --- stored state: cache, quarantine, crash reports, the daemon ---

CRASH_WINDOW_S: Final = 24 * 3600.0
_MAX_CRASHES: Final = 10
# Pattern of the reasons for which the bridge ends a host that hangs.
_HUNG: Final = re.compile(r"(?:the host|it) (?:did not|closed its|stopped in|process is stopped)", re.IGNORECASE)


def survey_state(machine: Machine) -> SavedState:
    """Read the stored state."""
    folder = state_folder(machine)
    paths = paths_of(machine.system)
    cached = machine.cache(cache_folder(machine))
    return SavedState(
        cache_entries=cached.entries,
        cache_bytes=cached.bytes,
        cache_damaged=cached.damaged,
        cache_bad_keys=cached.bad_keys,
        quarantined=_quarantined(machine, paths.join(folder, "quarantine.json")),
        crashes=_crashes(machine, paths.join(folder, "crashes")),
    )


def _quarantined(machine: Machine, path: str) -> tuple[str, ...]:
    # One day: as long as the supervisor refuses a quarantined model.
    ttl_s = 24 * 3600.0
    found: list[str] = []
    for account in read_json_of(machine, path).get("accounts", ()):
        since = account.get("since") if isinstance(account, dict) else None
        # Ignore older quarantine entries, which have expired but are still in the file.
        if isinstance(since, (int, float)) and machine.now() - since < ttl_s:
            found.append(str(account.get("model") or account.get("fingerprint", "")[:12]))
    return tuple(found)


def _crashes(machine: Machine, folder: str) -> tuple[Crash, ...]:
    """Return the crash reports of the last day, the newest first."""
    paths = paths_of(machine.system)
    found: list[Crash] = []
    # File names begin with the time, so the reversed order is newest first.
    for name in sorted(machine.names(folder), reverse=True):
        if not name.endswith(".json") or len(found) >= _MAX_CRASHES:
            continue
        report = read_json_of(machine, paths.join(folder, name))
        try:
            age = machine.now() - datetime.datetime.fromisoformat(str(report.get("when"))).timestamp()
        except ValueError:
            continue
        if age > CRASH_WINDOW_S or _was_wanted(report.get("killed_because")):
            continue
        exit_record = report.get("exit")
        diagnoses = report.get("diagnoses")
        first = diagnoses[0] if isinstance(diagnoses, list) and diagnoses else {}
        found.append(
            Crash(
                id=str(report.get("id", name[:-5])),
                age_s=age,
                exit=str(exit_record.get("name", "")) if isinstance(exit_record, dict) else "",
                phase=str(report.get("phase", "")),
                models=tuple(str(model) for model in report.get("models", ()) if model),
                cause=str(first.get("cause", "")) if isinstance(first, dict) else "",
            )
        )
    return tuple(found)


def _was_wanted(killed_because: object) -> bool:
    """Return whether qnnbridge ended the host on purpose (Ctrl+C, a deadline), not because the host hung."""
    return isinstance(killed_because, str) and _HUNG.match(killed_because) is None


def read_json_of(machine: Machine, path: str) -> dict[str, Any]:
    """Return the JSON object in a file; {} if the file cannot be read or contains anything else."""
    try:
        document = json.loads(text_of(machine, path) or "{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def find_memory(facts: Facts) -> Iterator[Finding]:
    """Yield findings about cache, quarantine and crashes."""
    state = facts.state
    if state.cache_damaged:
        yield finding(
            "cache.damaged",
            f"{_count(len(state.cache_damaged), 'entry', 'entries')} of the cache cannot be used",
            *state.cache_damaged[:5],
            fix=Remedy(
                commands=(f"qnnbridge cache clear {' '.join(key[:12] for key in state.cache_bad_keys)}",)
                if state.cache_bad_keys
                else ("qnnbridge cache prune",)
            ),
        )
    if state.quarantined:
        yield finding(
            "state.quarantine",
            f"{_count(len(state.quarantined), 'model', 'models')} in quarantine",
            ", ".join(state.quarantined[:5]),
            fix=Remedy(
                "See why, then let them try again.", ("qnnbridge crashes", "qnnbridge quarantine clear --all")
            ),
        )
    if state.crashes:
        last = state.crashes[0]
        what = f" of {', '.join(last.models)}" if last.models else ""
        yield finding(
            "state.crashes",
            f"the host died {_count(len(state.crashes), 'time', 'times')} in the last day",
            f"last: {last.exit} while {last.phase}{what}",
            last.cause,
            fix=Remedy("See why.", ("qnnbridge crashes show last",)),
        )


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def healthy_memory(facts: Facts) -> str:
    """Describe the stored state in one line."""
    entries = facts.state.cache_entries
    cached = f"{entries} compiled models, {facts.state.cache_bytes >> 20} MB; " if entries else ""
    return f"{cached}no model in quarantine, no crash in the last day"


MEMORY_CHECK = SubjectCheck("memory", find_memory, healthy_memory)


_LOGS: Final = "qnnbridge host logs"


def find_daemon(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the daemon."""
    daemon = facts.daemon
    if daemon.state == "untrusted":
        yield finding(
            "daemon.folder",
            "the folder of the daemon cannot be trusted",
            daemon.said,
            fix=daemon.fix or "Set QNNBRIDGE_RUNTIME_DIR to a folder of your own.",
        )
    elif daemon.state == "silent":
        yield finding(
            "daemon.silent",
            "the daemon does not answer",
            f"pid {daemon.pid}, {daemon.folder}",
            daemon.said,
            fix=Remedy("Read the daemon's log; if the daemon still does not answer, end its process.", (_LOGS,)),
        )
    elif daemon.state == "stale":
        yield finding(
            "daemon.stale",
            "the daemon ended unexpectedly",
            f"the discovery file of pid {daemon.pid} is still in {daemon.folder}",
            fix=Remedy("Find the reason in the log, then start a new daemon.", (_LOGS, "qnnbridge host start")),
        )
    elif daemon.state == "runs" and not daemon.fits:
        yield finding(
            "daemon.other-version",
            f"the daemon has qnnbridge {daemon.version}, but the application has {facts.qnnbridge}",
            daemon.said,
            fix=daemon.fix or Remedy("Restart the daemon with this version.", ("qnnbridge host restart --daemon",)),
        )
    is_wanted = facts.environment.get("QNNBRIDGE_HOST", "").lower() == "daemon"
    if daemon.dies_with_us and daemon.state != "runs" and is_wanted:
        yield finding(
            "daemon.ends-with-window",
            "no daemon can be started from this window, and none runs",
            "this process is in a Windows job that ends all of its processes, and no process can leave the job",
            fix=Remedy("Have Windows start the daemon.", ("qnnbridge host service --task-scheduler",)),
        )


def healthy_daemon(facts: Facts) -> str | None:
    """Describe the daemon in one line; return ``None`` if no daemon runs, but one can be started."""
    daemon = facts.daemon
    if daemon.state == "runs":
        return f"qnnbridge {daemon.version}, pid {daemon.pid}"
    if daemon.dies_with_us:
        return "no daemon runs, and none can be started here: Windows would end it together with this window"
    return None


DAEMON_CHECK = SubjectCheck("daemon", find_daemon, healthy_daemon)
