"""Exercise an onnxruntime-qnn on Windows, step by step, in the Windows Python of a lab, and print a JSON object.

usage: ``wheel_steps.py MODEL FOLDER...``; the folders, with the unpacked wheels, come first on the path. It needs
neither this project nor an NPU. Steps run in a separate process. If a step crashes it, the next process continues
with the following step.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STEPS_TIMEOUT_S = 90.0
MAX_SAID = 300
_FAULT = re.compile(
    r"\[(?P<severity>[EW]):onnxruntime:.*?\] (?P<text>.*(?:SetupBackend|[Ff]ailed|[Uu]nable|[Ee]rror).*)"
)
# The SoC of the Snapdragon X Elite, for the attempt to compile without a device.
SOC, ARCH = "60", "73"
PROVIDER = "QNNExecutionProvider"
MARK = "-- step: "


def steps_of(model: str, folder: Path) -> dict[str, Callable[[], Any]]:
    """Return the steps by name, in the order of execution."""
    is_plugin = (folder / "onnxruntime_qnn").is_dir()
    libraries = folder / ("onnxruntime_qnn" if is_plugin else "onnxruntime/capi")
    steps: dict[str, Callable[[], Any]] = {"import": lambda: _import(is_plugin)}
    if is_plugin:
        steps["register"] = _register
        steps["devices"] = _devices
    else:
        steps["providers"] = lambda: _onnxruntime().get_available_providers()
    for path in sorted(libraries.glob("*.dll")):
        if path.name.startswith(("Qnn", "Genie", "onnxruntime_providers_qnn")):
            steps[f"load {path.name}"] = lambda path=path: _load(path)  # type: ignore[misc]
    steps["session CPU"] = lambda: _session(model, None, is_plugin)
    if (libraries / "QnnHtp.dll").exists():
        steps["session QnnHtp"] = lambda: _session(model, libraries / "QnnHtp.dll", is_plugin)
        steps["compile QnnHtp"] = lambda: _session(model, libraries / "QnnHtp.dll", is_plugin, offline=True)
    for name in ("QnnSaver", "QnnCpu", "QnnIr"):
        if (backend := libraries / f"{name}.dll").exists():
            steps[f"session {name}"] = lambda backend=backend: _session(model, backend, is_plugin)  # type: ignore[misc]
    return steps


def _onnxruntime() -> Any:
    import onnxruntime

    return onnxruntime


def _import(is_plugin: bool) -> Any:
    found = [_onnxruntime().__version__]
    if is_plugin:
        import onnxruntime_qnn

        found.append(onnxruntime_qnn.__version__)
    return found


def _register() -> str:
    import onnxruntime_qnn

    _onnxruntime().register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    return "ok"


def _devices() -> list[str]:
    return [str(device.device.type).rpartition(".")[2] for device in _qnn_devices()]


def _qnn_devices() -> list[Any]:
    return [device for device in _onnxruntime().get_ep_devices() if device.ep_name == PROVIDER]


def _session(model: str, backend: Path | None, is_plugin: bool, *, offline: bool = False) -> Any:
    """Create a session on a single backend and run it once; return the largest number in its outputs."""
    import numpy as np

    onnxruntime = _onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 2
    provider = {"backend_path": str(backend)}
    if backend is not None and backend.stem == "QnnSaver" and not is_plugin:
        # In releases 1.x the saver replaces a backend that is given with it.
        provider = {"backend_path": str(backend.with_name("QnnHtp.dll")), "qnn_saver_path": str(backend)}
    if backend is not None:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if offline:
        options.add_session_config_entry("ep.context_enable", "1")
        options.add_session_config_entry("ep.context_file_path", "compiled.onnx")
        provider |= {"soc_model": SOC, "htp_arch": ARCH}
    providers: list[Any] = ["CPUExecutionProvider"]
    if backend is not None and is_plugin:
        devices = [device for device in _qnn_devices() if str(device.device.type).endswith("NPU")] or _qnn_devices()
        options.add_provider_for_devices(devices[:1], provider)
        providers = []
    elif backend is not None:
        providers = [(PROVIDER, provider)]
    session = onnxruntime.InferenceSession(model, options, providers=providers or None, enable_fallback=0)
    if offline:
        return sorted(entry.name for entry in Path().iterdir())
    told = session.get_inputs()[0]
    feeds = {told.name: np.ones(told.shape, np.float32)}
    return {"providers": session.get_providers(), "largest": round(float(np.max(session.run(None, feeds)[0])), 4)}


def _load(path: Path) -> str:
    try:
        ctypes.WinDLL(str(path))
    except OSError:
        lacking = [name for name in _imports(path.read_bytes()) if not _loads(name, path.parent)]
        return f"WinError {ctypes.get_last_error() or 126}: misses {', '.join(lacking) or 'a dependency of a dependency'}"
    return "ok"


def _loads(name: str, folder: Path) -> bool:
    try:
        ctypes.WinDLL(str(folder / name) if (folder / name).exists() else name)
    except OSError:
        return False
    return True


def _imports(data: bytes) -> Iterator[str]:
    """Yield the names of the libraries that a 64-bit PE file imports."""
    head = struct.unpack_from("<I", data, 0x3C)[0]
    count, optional = struct.unpack_from("<HxxxxxxxxxxxxH", data, head + 6)
    sections = [struct.unpack_from("<IIII", data, head + 24 + optional + 40 * n + 8) for n in range(count)]

    def at(address: int) -> int:
        return next(raw + address - start for size, start, _, raw in sections if start <= address < start + size)

    entry = at(struct.unpack_from("<I", data, head + 24 + 112 + 8)[0])
    while name := struct.unpack_from("<I", data, entry + 12)[0]:
        yield data[at(name) : data.index(b"\0", at(name))].decode("ascii")
        entry += 20


def run_steps(model: str, folders: list[str], first: int) -> None:
    """Run in the process that may crash. Print which step starts, and its result."""
    sys.path[:0] = folders
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        os.chdir(work)  # some backends write into the working folder
        for name, step in list(steps_of(model, Path(folders[0])).items())[first:]:
            print(json.dumps({"begins": name}), flush=True)
            print(f"\n{MARK}{name}", file=sys.stderr, flush=True)
            try:
                told = step()
            except Exception as error:  # any exception is a result
                told = _plain(f"{type(error).__name__}: {error}")
            print(json.dumps({"told": told}), flush=True)
        os.chdir(os.path.dirname(work))
    sys.stdout.flush()
    os._exit(0)


def main(model: str, folders: list[str]) -> dict[str, Any]:
    names = list(steps_of(model, Path(folders[0])))
    found: dict[str, Any] = {}
    while len(found) < len(names):
        command = [sys.executable, __file__, f"--from={len(found)}", model, *folders]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = child.communicate(timeout=STEPS_TIMEOUT_S)
            end = f"dies: 0x{child.returncode & 0xFFFFFFFF:08X}"
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()
            end = f"hangs: no end within {STEPS_TIMEOUT_S:.0f} s"
        logs = _logs(err.replace(b"\0", b"").decode("utf-8", "replace"))
        begun = ""
        for line in out.decode("utf-8", "replace").splitlines():
            said = json.loads(line) if line.startswith('{"') else {}
            begun = said.get("begins", begun)
            if "told" in said:
                found[begun] = _with_log(said["told"], logs.get(begun, ""))
        if len(found) < len(names):
            begun = names[len(found)]
            found[begun] = _with_log(end, logs.get(begun, ""))
    return found


def _with_log(told: Any, log: str) -> Any:
    """Return a fault with the log line that explains it."""
    return {"said": told, "log": log} if isinstance(told, str) and log else told


def _logs(text: str) -> dict[str, str]:
    """Return, for each step, the line of ONNX Runtime's log that explains the failure in QNN best."""
    found: dict[str, str] = {}
    for part in text.split(MARK)[1:]:
        name, _, rest = part.partition("\n")
        faults = [match for line in rest.splitlines() if (match := _FAULT.search(line))]
        best = min(
            faults, key=lambda match: ("SetupBackend" not in match["text"], match["severity"] != "E"), default=None
        )
        found[name.strip()] = _plain(best["text"]) if best else ""
    return found


def _plain(text: str) -> str:
    """Remove colours and parts that differ between runs."""
    return re.sub(r"\d{9,}", "N", " ".join(re.sub(r"\x1b\[[\d;]*m", "", text).split()))[:MAX_SAID]


if __name__ == "__main__":
    if sys.argv[1].startswith("--from="):
        run_steps(sys.argv[2], sys.argv[3:], int(sys.argv[1][7:]))
    else:
        print(json.dumps(main(sys.argv[1], sys.argv[2:])))
