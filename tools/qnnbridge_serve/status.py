"""Parts of `GET /status`: placement and accuracy of sessions, quantiles of times, and figures of the daemon.

Pure functions.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_tools.host import figures as words

if TYPE_CHECKING:
    from qnnbridge_protocol.model_records import NumbersReport
    from qnnbridge_protocol.specs import Placement
    from qnnbridge_tools.host.figures import Figures

# Number of recent answers from which quantiles are computed.
RECENT: Final = 1000
_QUANTILES: Final = (0.5, 0.9, 0.99)


def quantiles_of(values: Iterable[float]) -> dict[float, float | None]:
    """Return the quantiles 0.5, 0.9 and 0.99; an empty dictionary without values."""
    found = sorted(values)
    if not found:
        return {}
    # `statistics.quantiles` needs two values before Python 3.13.
    if len(found) == 1:
        return dict.fromkeys(_QUANTILES, found[0])
    cuts = statistics.quantiles(found, n=100, method="inclusive")
    return {quantile: cuts[round(quantile * 100) - 1] for quantile in _QUANTILES}


def quantile_row(quantiles: Mapping[float, float | None], factor: float = 1.0) -> dict[str, float] | None:
    """Return the quantiles as `p50`, `p90`, `p99`; ``None`` without values."""
    found = {f"p{round(q * 100)}": round(value * factor, 3) for q, value in quantiles.items() if value is not None}
    return found or None


@dataclasses.dataclass(frozen=True, slots=True)
class SessionStatus:
    """Status of a model's session. numbers: ``None`` if results are not compared with the CPU."""

    placement: Placement
    numbers: NumbersReport | None = None

    def document(self, name: str) -> dict[str, Any]:
        placement, numbers = self.placement, self.numbers
        return {
            "name": name,
            "placement": {
                "known": placement.known,
                "text": placement.nodes_text() if placement.known else "placement unknown",
                "qnn_nodes": placement.qnn_nodes,
                "cpu_nodes": placement.cpu_nodes,
                "simulator": placement.simulator,
                "cause": placement.cause,
                "source": placement.source,
                "npu_bytes": placement.npu_bytes,
                "variant": placement.variant,
            },
            "numbers": None
            if numbers is None
            else {
                "state": numbers.state,
                "summary": numbers.summary,
                "reason": numbers.reason,
                "cause": numbers.cause,
                "snr_db": _finite(numbers.snr_db),
                "max_abs": _finite(numbers.max_abs),
            },
        }


def _finite(number: float | None) -> float | None:
    """Return the number, or ``None`` for infinity and NaN, which browsers do not accept in JSON."""
    return number if number is not None and math.isfinite(number) else None


def daemon_document(figures: Figures) -> dict[str, Any]:
    """Return the contents of `qnnbridge top`, with the same texts and columns."""
    return {
        "facts": [
            ["NPU host", words.host_text(figures.host)],
            ["history", words.restarts_text(figures.host)],
            ["daemon", f"pid {figures.daemon.pid}, running for {words.duration(figures.daemon.uptime_s)}"],
            ["calls", words.totals_text(figures)],
            ["queue", words.queue_text(figures)],
            ["sessions", words.sessions_text(figures)],
            *(["generation", text] for text in [words.generation_text(figures)] if text),
        ],
        "tables": [
            _table("Models", words.MODEL_HEADERS, map(words.model_row, figures.models)),
            _table("Clients", words.CLIENT_HEADERS, map(words.client_row, figures.clients)),
        ],
    }


def _table(title: str, headers: Iterable[str], rows: Iterable[list[str]]) -> dict[str, Any]:
    return {"title": title, "headers": list(headers), "rows": list(rows)}
