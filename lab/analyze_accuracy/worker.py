"""Create sessions on the simulator: read JSON lines {"name", "path"}, write JSON lines with QNN's placement.

This program is a separate process, because models may crash it. It uses ONNX Runtime and QNN without the bridge.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

QNN = "QNNExecutionProvider"


def main(soc: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # QNN prints to stdout
    import onnxruntime as ort
    import onnxruntime_qnn

    ort.register_execution_provider_library(QNN, onnxruntime_qnn.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == QNN]
    for line in sys.stdin:
        job = json.loads(line)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        settings = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": soc}
        options.add_provider_for_devices(devices, {**settings, "offload_graph_io_quantization": "0"})
        answers.write(json.dumps(answer(ort, job, options)) + "\n")


def answer(ort: Any, job: dict[str, str], options: Any) -> dict[str, Any]:
    try:
        session = ort.InferenceSession(job["path"], options, enable_fallback=0)
    except Exception as error:
        return {"name": job["name"], "status": "error", "error": f"{type(error).__name__}: {error}"[:600]}
    placed = [
        [part.ep_name == QNN, [node.name for node in part.get_nodes()]]
        for part in session.get_provider_graph_assignment_info()
    ]
    return {"name": job["name"], "status": "ok", "parts": placed}


if __name__ == "__main__":
    main(sys.argv[1])
