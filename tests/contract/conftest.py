"""onnxruntime in this process, for comparison."""

from __future__ import annotations

import os

# Before anything imports onnxruntime here, for comparison: it sends telemetry from its import on.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
