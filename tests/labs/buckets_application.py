"""An application with shape buckets, which uses only numpy and qnnbridge. It prints its results as JSON.

buckets_application.py MODEL HOST_PYTHON
"""

from __future__ import annotations

import json
import platform
import sys
from typing import Any

import numpy as np

import qnnbridge

LENGTHS = (1, 5, 8, 13, 16)


def text(length: int) -> dict[str, Any]:
    rng = np.random.default_rng(length)
    shape = (1, length)
    return {
        "input_ids": rng.integers(1, 200, shape),
        "attention_mask": np.ones(shape, np.int64),
        "token_type_ids": np.zeros(shape, np.int64),
    }


def main() -> None:
    model, host_python = sys.argv[1:]
    with qnnbridge.Host(python=host_python) as host:
        cpu = qnnbridge.InferenceSession(model, providers=["CPUExecutionProvider"], host=host)
        session = qnnbridge.InferenceSession(
            model,
            providers=[("QNNExecutionProvider", {"soc_model": "60"})],
            host=host,
            buckets={"seq": [8, 16], "batch": 1},
            pad=0,
        )
        status = session.warm(workers=2)
        differences = []
        for length in LENGTHS:
            for result, expected in zip(session.run(None, text(length)), cpu.run(None, text(length)), strict=True):
                assert result.shape == expected.shape
                differences.append(float(np.abs(result - expected).max()))
        try:
            session.run(None, text(17))
            refusal = ""
        except qnnbridge.BridgeError as error:
            refusal = error.message
        report = {
            "python": platform.python_version(),
            "modules": sorted(name for name in sys.modules if name.split(".")[0] in ("onnxruntime", "onnx")),
            "on_cpu": [v.placement.cpu_nodes for v in status.variants if v.placement is not None],
            "on_qnn": [v.placement.qnn_nodes for v in status.variants if v.placement is not None],
            "difference": max(differences),
            "refusal": refusal,
            "padding": bool(session.verify_padding(text(5))),
        }
        session.close()
        cpu.close()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
