"""Read context binaries with QNN's system library in the Windows lab, and run one in a session."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import qnnbridge

QNN = [("QNNExecutionProvider", {"soc_model": "60"})]
FEEDS = {name: np.random.default_rng(3).integers(0, 256, (4, 8)).astype(np.uint8) for name in ("a", "b")}


def main(folder: Path) -> None:
    from qnnbridge_tools.binaries import gather, wrap_binary

    facts = gather(folder / "2.7.0_qnn.bin")
    told = facts.described
    assert told is not None, (facts.unread, facts.no_host)
    report: dict[str, object] = {"graphs": list(told.names), "layout": told.layout}
    wrapped = wrap_binary(folder / "2.7.0_qnn.bin", folder / "made_ctx.onnx")
    report["copied"] = wrapped.copied
    found = []
    with qnnbridge.Host() as host:
        for name in ("2.7.0.onnx", "2.7.0_qnn.bin", "made_ctx.onnx"):
            with qnnbridge.InferenceSession(folder / name, providers=QNN, host=host) as session:
                found.append([one.tobytes().hex() for one in session.run(["y", "z"], FEEDS)])
    report["alike"] = found[0] == found[1] == found[2]
    report["numbers"] = found[0]
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
