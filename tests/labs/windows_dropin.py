"""Run a program for onnxruntime with the drop-in, and asyncio on Windows' own event loop, in the Windows lab.

`qnnbridge exec` starts this program, so it must import onnxruntime before qnnbridge. It prints a JSON document.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sys
import threading

import numpy as np
import onnxruntime as ort


def main(model: str) -> None:
    feed = {"X": np.ones((3, 2), np.float32)}
    session = ort.InferenceSession(model, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    results: list[float] = []
    threads = [
        threading.Thread(target=lambda: results.append(float(session.run(None, feed)[0].sum()))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    import qnnbridge.aio

    async def gather() -> list[float]:
        async with qnnbridge.aio.InferenceSession(model, providers=["CPUExecutionProvider"]) as one:
            outputs = await asyncio.gather(*(one.run(None, feed) for _ in range(4)))
        return [float(output[0].sum()) for output in outputs]

    report = {
        "module": ort.__spec__.name,
        "version_told": ort.__version__ == importlib.metadata.version("onnxruntime") != "",
        "main": __name__,
        "arguments": sys.argv[2:],
        "threads": results,
        "tasks": asyncio.run(gather()),
        "loop": asyncio.get_event_loop_policy().__class__.__name__,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
