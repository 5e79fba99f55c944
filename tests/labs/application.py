"""A typical application with numpy and qnnbridge, without onnxruntime. It runs unchanged on every target.

    application.py MODEL INPUTS.npz OUTPUTS.npz [--host PYTHON] [--provider NAME] [--option KEY=VALUE ...]

Runs the model on the arrays of INPUTS, writes the results to OUTPUTS, and prints facts about host and placement as
its last line, in JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import platform
import sys

import numpy as np

import qnnbridge


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("inputs")
    parser.add_argument("outputs")
    parser.add_argument("--host", help="interpreter of the host; without it the bridge chooses")
    parser.add_argument("--provider", default="QNNExecutionProvider")
    parser.add_argument("--option", action="append", default=[], help="KEY=VALUE for the provider")
    arguments = parser.parse_args()

    with np.load(arguments.inputs) as archive:
        feeds = dict(archive)
    options = dict(text.split("=", 1) for text in arguments.option)
    with (
        qnnbridge.Host(python=arguments.host) as host,
        qnnbridge.InferenceSession(
            arguments.model, providers=[(arguments.provider, options)], host=host
        ) as session,
    ):
        names = [output.name for output in session.get_outputs()]
        results = session.run(None, feeds)
        report = {
            "system": platform.system(),
            "python": platform.python_version(),
            "modules": sorted(name for name in sys.modules if name.split(".")[0] in ("onnxruntime", "onnx")),
            "has_onnxruntime": importlib.util.find_spec("onnxruntime") is not None,
            "host": dataclasses.asdict(host.info),
            "placement": dataclasses.asdict(session.placement),
            "providers": session.get_providers(),
        }
    np.savez(arguments.outputs, **dict(zip(names, results, strict=True)))
    print(json.dumps(report, default=str))


if __name__ == "__main__":
    main()
