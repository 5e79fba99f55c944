"""Read the trace file of onnxruntime-qnn (2.4 and later): where each node is placed, and why QNN refused a node."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Final

TRACE_FILE: Final = "qnn_op_trace.json"
# The provider appends this text to each reason without a space. It is removed, because it only repeats the node and
# its placement.
_REPEATED: Final = re.compile(r"(?<=\.)\w+ node `[^`]*` will not be assigned to QNN EP\.")


def tracing(folder: str) -> dict[str, str]:
    """Return the options of QNN that write the trace into a folder."""
    return {"enable_framework_op_trace": "1", "framework_op_trace_dir": folder}


def read_trace(folder: str) -> dict[str, Any]:
    """Return the trace in a folder; empty if it does not exist or cannot be read."""
    try:
        with open(os.path.join(folder, TRACE_FILE), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def reason_of(refused: Any) -> str:
    """Return QNN's reason for one of the trace's `unsupported_nodes`."""
    return _REPEATED.sub("", str(refused.get("reason", ""))).strip()
