"""onnxruntime in this process, for comparison."""

from __future__ import annotations

import os

# Disable telemetry before any import of onnxruntime, which sends telemetry from its import on.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
