"""Faults in words: exit codes, lines of ONNX Runtime's log, deaths of the host, crash reports.

Pure functions over tables, apart from `reports` (files). No process is started here. Nothing of this is needed as
long as nothing fails, so a name is loaded when it is first used: importing the tables takes 20 ms.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from qnnbridge._diagnosis.crash import CrashRecord, Diagnosis, OpenCall, diagnose, to_error
    from qnnbridge._diagnosis.exit_codes import Explanation, explain_code
    from qnnbridge._diagnosis.exit_status import ExitStatus
    from qnnbridge._diagnosis.ort_log import Finding, enrich, enrich_from_stderr, explain_lines, unsupported_nodes
    from qnnbridge._diagnosis.reports import CrashReports, ReportSummary
    from qnnbridge._diagnosis.stderr_text import decode_stderr

_HOME: Final = {
    "CrashRecord": "crash",
    "CrashReports": "reports",
    "Diagnosis": "crash",
    "ExitStatus": "exit_status",
    "Explanation": "exit_codes",
    "Finding": "ort_log",
    "OpenCall": "crash",
    "ReportSummary": "reports",
    "decode_stderr": "stderr_text",
    "diagnose": "crash",
    "enrich": "ort_log",
    "enrich_from_stderr": "ort_log",
    "explain_code": "exit_codes",
    "explain_lines": "ort_log",
    "to_error": "crash",
    "unsupported_nodes": "ort_log",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


__all__ = [
    "CrashRecord",
    "CrashReports",
    "Diagnosis",
    "ExitStatus",
    "Explanation",
    "Finding",
    "OpenCall",
    "ReportSummary",
    "decode_stderr",
    "diagnose",
    "enrich",
    "enrich_from_stderr",
    "explain_code",
    "explain_lines",
    "to_error",
    "unsupported_nodes",
]
