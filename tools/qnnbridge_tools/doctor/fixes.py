"""`qnnbridge doctor --fix`: what can be mended without harm, each thing only after a yes, and what was done.

Packages that exist are not touched here: `setup-host` makes an environment of its own, and asks once more before it
replaces one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from qnnbridge_tools.doctor.advice import SETUP_HOST
from qnnbridge_tools.doctor.findings import Finding, Report


@dataclasses.dataclass(frozen=True, slots=True)
class Fix:
    """question: asked before. apply: does it for the first of the findings and says what it did. codes: of the
    findings that it may mend; with a command also those whose own fix has it."""

    codes: tuple[str, ...]
    question: str
    apply: Callable[[Finding], str]
    command: str | None = None

    def mends(self, found: Finding) -> bool:
        if found.code in self.codes:
            return True
        return self.command is not None and any(line.startswith(self.command) for line in found.remedy.commands)


def _clear_quarantine(_found: Finding) -> str:
    from qnnbridge._supervision.quarantine import Quarantine

    quarantine = Quarantine()
    accounts = quarantine.accounts()
    quarantine.clear()
    return f"let {len(accounts)} models out of quarantine: {', '.join(account.model for account in accounts)}"


def _prune_cache(_found: Finding) -> str:
    from qnnbridge_host.cache.settings import cache_dir
    from qnnbridge_tools.doctor.real_machine import RealMachine

    bad = RealMachine().cache(str(cache_dir())).bad_keys
    done = [_run_command("cache", "clear", *bad)] if bad else []
    return "; ".join([*done, _run_command("cache", "prune")])


def _set_up_host(found: Finding) -> str:
    """With the options that the finding's own fix gives it; what else that fix has is left to the user."""
    lines = found.remedy.commands
    own = next((line for line in lines if line.startswith(SETUP_HOST)), SETUP_HOST)
    said = _run_command(*own.split()[1:])
    rest = lines[lines.index(own) + 1 :] if own in lines else ()
    return said + "".join(f"; then run: {line}" for line in rest)


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
        SETUP_HOST,
    ),
    Fix(("cache.damaged", "path.disk-full"), "Remove damaged and old entries of the cache?", _prune_cache),
    Fix(("state.quarantine",), "Let the models in quarantine try again?", _clear_quarantine),
)


def apply_fixes(report: Report, ask: Callable[[str], bool]) -> list[str]:
    """Lines about what was done, and about what was not."""
    lines = []
    left = list(report.findings)
    for fix in FIXES:
        found = [one for one in left if fix.mends(one)]
        if not found:
            continue
        left = [one for one in left if one not in found]
        reasons = [one.code for one in found]
        if not ask(fix.question):
            lines.append(f"not done ({', '.join(reasons)}): {fix.question}")
            continue
        try:
            lines.append(f"done ({', '.join(reasons)}): {fix.apply(found[0])}")
        except Exception as error:  # noqa: BLE001 - one fix that fails must not keep the others from being tried
            lines.append(f"failed ({', '.join(reasons)}): {error}")
    lines += [f"not mended by --fix ({code}): do what its fix says" for code in (one.code for one in left)]
    return lines
