"""Faults in words: exit codes, lines of ONNX Runtime's log, deaths of the host, crash reports.

Pure functions over tables, apart from `reports` (files). No process is started here, and nothing here is needed
as long as nothing fails: import it when it does.
"""

from qnnbridge.diagnosis.crash import CrashRecord, Diagnosis, InFlight, diagnose, to_error
from qnnbridge.diagnosis.exit_codes import Explanation, explain_code
from qnnbridge.diagnosis.exit_status import ExitStatus
from qnnbridge.diagnosis.ort_log import (
    Finding,
    NodeReason,
    decode_stderr,
    enrich,
    enrich_from_stderr,
    explain_lines,
    unsupported_nodes,
)
from qnnbridge.diagnosis.reports import CrashReports, ReportSummary

__all__ = [
    "CrashRecord",
    "CrashReports",
    "Diagnosis",
    "ExitStatus",
    "Explanation",
    "Finding",
    "InFlight",
    "NodeReason",
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
