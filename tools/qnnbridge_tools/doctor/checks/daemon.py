"""Can applications use the daemon that they would find, or start one that lasts?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.checks import Check
from qnnbridge_tools.doctor.facts import Facts
from qnnbridge_tools.doctor.findings import Finding, Remedy

WANTED: Final = "QNNBRIDGE_HOST"
_LOGS: Final = "qnnbridge host logs"


def find(facts: Facts) -> Iterator[Finding]:
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
            "a daemon started from here would end together with this window",
            "this process is in a job of Windows that ends its programs and lets none out",
            fix=Remedy("Have Windows start the daemon.", ("qnnbridge host service --task-scheduler",)),
        )


def _is_wanted(facts: Facts) -> bool:
    return facts.environment.get(WANTED, "").lower() == "daemon"


def healthy(facts: Facts) -> str | None:
    daemon = facts.daemon
    if daemon.state == "runs":
        return f"qnnbridge {daemon.version}, pid {daemon.pid}"
    if daemon.dies_with_us:
        return "none runs; one that is started from this window would end with it"
    return None


CHECK = Check("daemon", find, healthy)
