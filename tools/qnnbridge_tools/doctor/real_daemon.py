"""The daemon of this user on this computer, as applications would find it. Connects, never starts one.

What cannot be imported is as good as no daemon: the doctor also works where packages are missing, and says that
elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qnnbridge_protocol.errors import BridgeError, VersionMismatch
from qnnbridge_tools.doctor.facts import DaemonFacts

if TYPE_CHECKING:
    from qnnbridge._daemon.discovery import Discovery

ANSWER_TIMEOUT_S: Final = 5.0
_JOB_BREAKAWAY_OK: Final = 0x0800
_JOB_SILENT_BREAKAWAY_OK: Final = 0x1000
_JOB_KILL_ON_CLOSE: Final = 0x2000


def ends_with_job(flags: int | None) -> bool:
    """Whether a job of Windows with these limits ends what is started in it, and lets nothing leave it."""
    may_leave = _JOB_BREAKAWAY_OK | _JOB_SILENT_BREAKAWAY_OK
    return flags is not None and bool(flags & _JOB_KILL_ON_CLOSE) and not flags & may_leave


def look_for_daemon(job_flags: int | None) -> DaemonFacts:
    """job_flags: limits of the job that this process is in, ``None`` if it is in none."""
    dies_with_us = ends_with_job(job_flags)
    try:
        from qnnbridge._daemon.folder import existing_runtime_folder, runtime_folder
        from qnnbridge_tools.host.link import left_behind
    except ImportError:
        return DaemonFacts(dies_with_us=dies_with_us)
    folder = str(runtime_folder())
    try:
        found = left_behind() if existing_runtime_folder() is not None else None
    except BridgeError as error:
        return DaemonFacts("untrusted", folder, said=error.message, fix=error.fix or "", dies_with_us=dies_with_us)
    if found is None:
        return DaemonFacts(folder=folder, dies_with_us=dies_with_us)
    return _ask(found, folder, dies_with_us)


def _ask(found: Discovery, folder: str, dies_with_us: bool) -> DaemonFacts:
    """Of a daemon that has left its file: does it answer?"""
    from qnnbridge_tools.host import link

    def facts(state: str, version: str, said: str = "", fix: str = "", fits: bool = True) -> DaemonFacts:
        return DaemonFacts(state, folder, version, found.pid, said, fix, fits, dies_with_us)

    try:
        with link.reach(ANSWER_TIMEOUT_S) as daemon:
            told = daemon.status().get("daemon")
    except VersionMismatch as error:
        return facts("runs", found.qnnbridge, error.message, error.fix or "", fits=False)
    except BridgeError as error:
        return facts("stale" if link.is_none(error) else "silent", found.qnnbridge, error.cause or error.message)
    version = told.get("qnnbridge") if isinstance(told, dict) else None
    return facts("runs", str(version or found.qnnbridge))
