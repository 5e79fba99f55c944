"""`qnnbridge doctor --fix`: what can be mended without harm, each thing only after a yes, and what was done.

Packages and environments that exist are not touched here: `setup-host` makes one of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from qnnbridge_tools.doctor.findings import Report


@dataclasses.dataclass(frozen=True, slots=True)
class Fix:
    """question: asked before. apply: does it and says what it did. codes: the findings that it may mend."""

    codes: tuple[str, ...]
    question: str
    apply: Callable[[], str]


def _clear_quarantine() -> str:
    from qnnbridge.supervision.quarantine import Quarantine

    quarantine = Quarantine()
    accounts = quarantine.accounts()
    quarantine.clear()
    return f"let {len(accounts)} models out of quarantine: {', '.join(account.model for account in accounts)}"


def _prune_cache() -> str:
    from qnnbridge.cache.settings import cache_dir
    from qnnbridge_tools.doctor.real_machine import RealMachine

    bad = RealMachine().cache(str(cache_dir())).bad_keys
    done = [_run_command("cache", "clear", *bad)] if bad else []
    return "; ".join([*done, _run_command("cache", "prune")])


def _set_up_host() -> str:
    return _run_command("setup-host")


def _run_command(*arguments: str) -> str:
    import subprocess
    import sys

    command = [sys.executable, "-m", "qnnbridge_tools", *arguments]
    code = subprocess.run(command, check=False).returncode
    return f"ran qnnbridge {' '.join(arguments)}: " + ("done" if code == 0 else f"it ended with {code}")


FIXES: Final = (
    Fix(
        ("host.none", "host.only-emulated", "host.packages-missing", "host.python-too-old", "host.base-missing"),
        "Set up a host in an environment of its own (qnnbridge setup-host)?",
        _set_up_host,
    ),
    Fix(("cache.damaged", "path.disk-full"), "Remove damaged and old entries of the cache?", _prune_cache),
    Fix(("state.quarantine",), "Let the models in quarantine try again?", _clear_quarantine),
)


def apply_fixes(report: Report, ask: Callable[[str], bool]) -> list[str]:
    """Lines about what was done, and about what was not."""
    lines = []
    codes = [one.code for one in report.findings]
    for fix in FIXES:
        reasons = [code for code in codes if code in fix.codes]
        if not reasons:
            continue
        codes = [code for code in codes if code not in reasons]
        if not ask(fix.question):
            lines.append(f"not done ({', '.join(reasons)}): {fix.question}")
            continue
        try:
            lines.append(f"done ({', '.join(reasons)}): {fix.apply()}")
        except Exception as error:  # noqa: BLE001 - one fix that fails must not keep the others from being tried
            lines.append(f"failed ({', '.join(reasons)}): {error}")
    lines += [f"not mended by --fix ({code}): do what its fix says" for code in codes]
    return lines
