"""The state of qnnbridge on this computer: cache, quarantine, crash reports, the daemon. Survey and checks."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from typing import Any, Final

from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.facts import Crash, Facts, SavedState
from qnnbridge_tools.doctor.findings import Finding, Remedy, SubjectCheck
from qnnbridge_tools.doctor.machine import Machine, paths_of, text_of
from qnnbridge_tools.doctor.subjects.environment import cache_folder, state_folder

CRASH_WINDOW_S: Final = 24 * 3600.0
_MAX_CRASHES: Final = 10
# Reasons for which qnnbridge ends a host that is at fault itself.
_HUNG: Final = re.compile(r"(?:the host|it) (?:did not|closed its|stopped in|process is stopped)", re.IGNORECASE)


def survey_state(machine: Machine) -> SavedState:
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
    # As the supervisor keeps them: a model is refused for a day.
    ttl_s = 24 * 3600.0
    found: list[str] = []
    for account in _read_json(machine, path).get("accounts", ()):
        since = account.get("since") if isinstance(account, dict) else None
        # An account that is older has ended, though the file still has it.
        if isinstance(since, (int, float)) and machine.now() - since < ttl_s:
            found.append(str(account.get("model") or account.get("fingerprint", "")[:12]))
    return tuple(found)


def _crashes(machine: Machine, folder: str) -> tuple[Crash, ...]:
    """The reports of the last day, newest first."""
    paths = paths_of(machine.system)
    found: list[Crash] = []
    # The names begin with the time, so that the newest comes first.
    for name in sorted(machine.names(folder), reverse=True):
        if not name.endswith(".json") or len(found) >= _MAX_CRASHES:
            continue
        report = _read_json(machine, paths.join(folder, name))
        age = _age(machine, report.get("when"))
        if age is None or age > CRASH_WINDOW_S or _was_wanted(report.get("killed_because")):
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


# A host that is killed on purpose is no crash, and would be a false alarm.
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
        document = json.loads(text_of(machine, path) or "{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def find_memory(facts: Facts) -> Iterator[Finding]:
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
    entries = facts.state.cache_entries
    cached = f"{entries} compiled models, {facts.state.cache_bytes >> 20} MB; " if entries else ""
    return f"{cached}no model in quarantine, no crash in the last day"


MEMORY_CHECK = SubjectCheck("memory", find_memory, healthy_memory)


WANTED_BY_VARIABLE: Final = "QNNBRIDGE_HOST"
_LOGS: Final = "qnnbridge host logs"


def find_daemon(facts: Facts) -> Iterator[Finding]:
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
            fix=Remedy("See what it does; if it stays like that, end the process and start it again.", (_LOGS,)),
        )
    elif daemon.state == "stale":
        yield finding(
            "daemon.stale",
            "the daemon ended without taking leave",
            f"left behind in {daemon.folder} by pid {daemon.pid}",
            fix=Remedy("See why, then start it again.", (_LOGS, "qnnbridge host start")),
        )
    elif daemon.state == "runs" and not daemon.fits:
        yield finding(
            "daemon.other-version",
            f"the daemon is qnnbridge {daemon.version}, and this is {facts.qnnbridge}",
            daemon.said,
            fix=daemon.fix or Remedy("Start it anew with this version.", ("qnnbridge host restart --daemon",)),
        )
    if daemon.dies_with_us and daemon.state != "runs" and _is_wanted(facts):
        yield finding(
            "daemon.ends-with-window",
            "no daemon can be started from this window, and none runs",
            "this process is in a job of Windows that ends its programs and lets none out",
            fix=Remedy("Have Windows start the daemon.", ("qnnbridge host service --task-scheduler",)),
        )


def _is_wanted(facts: Facts) -> bool:
    return facts.environment.get(WANTED_BY_VARIABLE, "").lower() == "daemon"


def healthy_daemon(facts: Facts) -> str | None:
    daemon = facts.daemon
    if daemon.state == "runs":
        return f"qnnbridge {daemon.version}, pid {daemon.pid}"
    if daemon.dies_with_us:
        return "none runs, and none can be started from this window, with which it would end"
    return None


DAEMON_CHECK = SubjectCheck("daemon", find_daemon, healthy_daemon)
