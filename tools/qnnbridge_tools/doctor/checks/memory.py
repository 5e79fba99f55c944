"""What does qnnbridge remember: damaged cache entries, models in quarantine, crashes of the last day?"""

from __future__ import annotations

from collections.abc import Iterator

from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.checks import Check
from qnnbridge_tools.doctor.facts import Facts
from qnnbridge_tools.doctor.findings import Finding, Remedy


def find(facts: Facts) -> Iterator[Finding]:
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


def healthy(facts: Facts) -> str:
    entries = facts.state.cache_entries
    cached = f"{entries} compiled models, {facts.state.cache_bytes >> 20} MB; " if entries else ""
    return f"{cached}no model in quarantine, no crash in the last day"


CHECK = Check("memory", find, healthy)
