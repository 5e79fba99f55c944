"""A report for a program. docs/doctor.schema.json describes it; the schema number changes when a name does."""

from __future__ import annotations

from typing import Any, Final

from qnnbridge_protocol._version import __version__
from qnnbridge_tools.doctor.findings import Report

SCHEMA: Final = 1


def report_document(report: Report) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "qnnbridge": __version__,
        "status": report.severity.name.lower(),
        "exit_code": report.exit_code,
        "verdict": report.verdict,
        "seconds": round(report.seconds, 3),
        "findings": [one.to_json() for one in report.findings],
        "healthy": [{"check": one.check, "text": one.text} for one in report.healthy],
    }
