"""Try a release of onnxruntime-genai in a worker before the host uses it, if it is newer than all tested releases.

ctypes cannot check the functions of the library: a call with unexpected arguments crashes the process or returns
wrong tokens. So a worker calls each function that the host calls, and generates with the application's folder
twice: through the C interface as the host does, and with the release's Python module. The host imports the release
if both generations return the same tokens. A file next to the placements of stages stores the result, for the
release, its library, the layout and the versions of ONNX Runtime and QNN. A failure counts for one day only,
because it may have another cause, such as a full NPU. The worker's part is `trial_worker`. Thread-safe.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.cache.files import read_json, write_json
from qnnbridge_host.genai.native import LIBRARY, unsupported_layout
from qnnbridge_host.model.genai_folder import TRIED, GenaiFolder, beside_table
from qnnbridge_host.model.source import take_stamp
from qnnbridge_protocol import __version__
from qnnbridge_protocol.errors import BridgeError, GenerationUnsupported, WorkerDied
from qnnbridge_protocol.visible import log_of

_log = log_of("qnnbridge.generation")

# Arguments: the model, header and buffers of the request. Result: header of the reply.
Work = Callable[[GenaiFolder, Mapping[str, Any], tuple[Any, ...]], Mapping[str, Any]]

SCHEMA: Final = 1
# Loading a large model twice takes minutes.
TIMEOUT_S: Final = 1800.0
FAILURE_COUNTS_S: Final = 24 * 3600.0

_lock = threading.Lock()
# Results of this process, used without a cache.
_kept: dict[str, dict[str, Any]] = {}


def ensure_tried(
    version: str,
    folder: GenaiFolder,
    steps: Sequence[Sequence[Any]],
    data: Mapping[str, bytes],
    versions: Mapping[str, str],
    records: Path | None,
    work: Work,
) -> str:
    """Try the release with the folder, unless a result is stored. Return a warning for the application.

    Args:
        version: version of the release.
        folder: folder of the model.
        steps: changes to its config.
        data: files of the model that were sent as bytes, by name.
        versions: versions of ONNX Runtime, QNN and the driver.
        records: folder of stored results; ``None``: results are kept in memory.
        work: returns the reply of a new worker to a request about the model.

    Raises:
        GenerationUnsupported: the host must not use the release for this layout.
        BridgeError: the worker's error; its evidence contains the release.
    """
    asks_qnn = any(stage.qnn_options is not None for stage in folder.stages)
    key = _key(version, folder, versions, asks_qnn=asks_qnn)
    file = None if records is None else records / f"trial-{key}.json"
    # The lock is held during the trial, so that a second application waits for the result.
    with _lock:
        found = _recall(file, key)
        if found is None:
            _log.warning(
                "onnxruntime-genai %s is %s: a separate process tries %s first.",
                *(version, beside_table(version), folder.label),
            )
            found = _in_worker(version, folder, steps, data, work)
            _remember(file, key, found)
    if found.get("problem"):
        raise _refusal(version, folder, found, file)
    compared = found.get("compared") or ""
    text = f"onnxruntime-genai {version} is {beside_table(version)}. "
    if compared:
        return f"{text}A trial in a separate process succeeded, but its tokens could not be compared: {compared}."
    return f"{text}A trial in a separate process gave the same tokens as the release's Python module."


def _in_worker(
    version: str, folder: GenaiFolder, steps: Sequence[Sequence[Any]], data: Mapping[str, bytes], work: Work
) -> dict[str, Any]:
    header = {
        "op": "worker.generate",
        "folder": folder.path,
        "steps": [list(step) for step in steps],
        "data": list(data),
    }
    try:
        reply = work(folder, header, tuple(data.values()))
    except WorkerDied as error:
        return {"problem": "died", "exit_code": error.details.get("exit_code"), "words": error.message}
    except BridgeError as error:
        evidence = f"onnxruntime-genai {version} is {beside_table(version)}"
        error.evidence = (*error.evidence, evidence)
        raise
    return {"problem": str(reply["problem"]), "words": str(reply["words"]), "compared": str(reply["compared"])}


def _refusal(
    version: str, folder: GenaiFolder, found: Mapping[str, Any], file: Path | None
) -> GenerationUnsupported:
    if found["problem"] == "layout":
        return unsupported_layout(
            folder, version, f"a trial in a separate process reported: {found['words']}", newer=True
        )
    what = {
        "died": "ended the process that tried it",
        "differs": "generates different tokens through its C interface and through its Python module",
        "fails": "fails through its C interface, but not through its Python module",
    }[str(found["problem"])]
    again = "" if file is None else f" The result counts for a day; to try again at once, remove {file}."
    return GenerationUnsupported(
        f"onnxruntime-genai {version} {what}, with {folder.label}.",
        cause=f"onnxruntime-genai {version} is {beside_table(version)}: its interface, or its handling of the "
        f"layout {folder.layout!r}, has probably changed.",
        evidence=[str(found["words"])] if found.get("words") else [],
        fix=f"Update qnnbridge, or install onnxruntime-genai=={TRIED[-1]} in the host's Python.{again}",
        details={"genai": version, "layout": folder.layout, "trial": found["problem"]},
    )


# --- stored results ------------------------------------------------------------------------------------------


def _key(version: str, folder: GenaiFolder, versions: Mapping[str, str], *, asks_qnn: bool) -> str:
    given = {name: versions[name] for name in sorted(versions)}
    parts = [SCHEMA, __version__, version, _library_stamp(), folder.layout, asks_qnn, given]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _library_stamp() -> list[Any] | None:
    """Return path, size and date of the release's library, without importing its module."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        spec = importlib.util.find_spec("onnxruntime_genai")
        for root in (spec.submodule_search_locations or ()) if spec is not None else ():
            path = os.path.join(root, LIBRARY)
            stamp = take_stamp(path)
            if stamp is not None:
                return [path, *stamp.to_plain()[:-1]]
    return None


def _recall(file: Path | None, key: str) -> dict[str, Any] | None:
    found = _kept.get(key)
    if found is None and file is not None:
        with contextlib.suppress(Exception):  # if the record is damaged, try the release again
            found = read_json(file)
    if found is None or found.get("schema") != SCHEMA:
        return None
    age = time.time() - float(found["at"])
    return None if found.get("problem") and not 0 <= age < FAILURE_COUNTS_S else found


def _remember(file: Path | None, key: str, found: dict[str, Any]) -> None:
    found.update(schema=SCHEMA, at=time.time())
    # Keep the result in memory only if it is not in a file, so that removing the file makes the next load try
    # again.
    if file is None:
        _kept[key] = found
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, found)
    except OSError:
        _kept[key] = found
