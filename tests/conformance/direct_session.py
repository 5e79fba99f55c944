"""Run models with ONNX Runtime and QNN alone, in a separate process that imports no code of the bridge.

`python direct_session.py JOB...` reads JSON files: ``{"model": PATH, "modes": {NAME: [PROVIDER, ...]}, "soc_model":
TEXT, "feeds": [FILE.npz, ...], "outputs": FOLDER}`` and writes the outputs of each mode and each feed to
``FOLDER/MODE.FEED.npz``. It uses the two packages exactly as documented.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

QNN = "QNNExecutionProvider"
CPU = "CPUExecutionProvider"


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Return the outputs of a run as arrays by name.

    A list is split by position, and a map into its keys and values. Properties that an array does not show (list or
    map, a number of Python or of numpy) are part of the name.
    """
    if isinstance(value, list):
        flat = {f"{path}list": np.array(len(value))}
        for index, item in enumerate(value):
            flat.update(flatten(item, f"{path}{index}."))
        return flat
    if isinstance(value, dict):
        kinds = sorted({f"{type(key).__name__} to {type(item).__name__}" for key, item in value.items()})
        return {f"{path}keys": np.array(list(value)), f"{path}map {kinds}": np.array(list(value.values()))}
    return {f"{path}{type(value).__name__}": np.asarray(value)}


def make_session(model: str, providers: list[str], soc_model: str) -> Any:
    import onnxruntime as ort
    import onnxruntime_qnn

    options = ort.SessionOptions()
    options.log_severity_level = 4
    if QNN not in providers:
        return ort.InferenceSession(model, options, providers=providers, enable_fallback=0)
    if QNN not in {device.ep_name for device in ort.get_ep_devices()}:
        ort.register_execution_provider_library(QNN, onnxruntime_qnn.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == QNN]
    if CPU not in providers:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.add_provider_for_devices(
        devices, {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": soc_model}
    )
    return ort.InferenceSession(model, options, enable_fallback=0)


def run_job(job_file: str) -> None:
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    for mode, providers in job["modes"].items():
        session = make_session(job["model"], providers, job["soc_model"])
        for feed_file in map(Path, job["feeds"]):
            with np.load(feed_file) as feeds:
                outputs = session.run(None, dict(feeds))
            np.savez(Path(job["outputs"], f"{mode}.{feed_file.stem}.npz"), **flatten(outputs))


def main(job_files: list[str]) -> None:
    for job_file in job_files:
        run_job(job_file)
    ours = sorted(name for name in sys.modules if name.startswith("qnnbridge"))
    assert not ours, f"this is meant to be without the bridge: {ours}"


if __name__ == "__main__":
    main(sys.argv[1:])
