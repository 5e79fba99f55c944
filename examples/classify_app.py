"""Runs a model on random input and prints the strongest outputs and where the model ran.

Python 3.10 or newer; numpy and qnnbridge, no onnxruntime:

    python classify_app.py model.onnx [--host-python C:/Python313-arm64/python.exe] [--cpu]
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

import qnnbridge

DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}


def random_feeds(session: qnnbridge.InferenceSession) -> dict[str, np.ndarray]:
    """An array for each input; a dimension without a size gets 1."""
    rng = np.random.default_rng(0)
    feeds = {}
    for node in session.get_inputs():
        shape = [size if isinstance(size, int) and size > 0 else 1 for size in node.shape]
        feeds[node.name] = rng.random(shape).astype(DTYPES.get(node.type, np.int64))
    return feeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--host-python", help="the ARM64 Python with qnnbridge[host]; default: found by itself")
    parser.add_argument("--cpu", action="store_true", help="run on the CPU instead of the NPU")
    arguments = parser.parse_args()
    provider = "CPUExecutionProvider" if arguments.cpu else "QNNExecutionProvider"

    with qnnbridge.Host(python=arguments.host_python) as host:
        session = qnnbridge.InferenceSession(arguments.model, providers=[provider], host=host)
        where = session.placement
        print(f"host: Python {host.info.python} on {host.info.machine}, process {host.info.pid}")
        print(f"placement: {where.qnn_nodes} nodes on QNN, {where.cpu_nodes} nodes on the CPU")
        results = session.run(None, random_feeds(session))
        for node, values in zip(session.get_outputs(), results, strict=True):
            flat = np.asarray(values).reshape(-1)
            best = np.argsort(flat)[::-1][:5]
            print(f"{node.name}: " + ", ".join(f"[{place}] {flat[place]:.4g}" for place in best))


if __name__ == "__main__":
    try:
        main()
    except qnnbridge.BridgeError as error:
        sys.exit(f"{type(error).__name__}: {error}")
