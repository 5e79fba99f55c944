"""Writes the outputs of `qnnbridge run` into one folder and never outside of it.

Names of outputs come from the model and may hold anything ("../x", "CON", 4000 letters), so file names are made
from them, not taken from them. Files are written beside their place and renamed, so a reader never sees half a
file, and a link that lies in the folder is replaced instead of followed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from qnnbridge_protocol.sparse import Sparse
from qnnbridge_protocol.typed import Typed
from qnnbridge_tools import output

MAX_NAME_LENGTH = 80
_WINDOWS_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


def write(values: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Writes every value; gives the file of each. Tensors are .npy, sparse ones .npz, sequences and maps .json."""
    stems = safe_names(list(values))
    written: dict[str, Path] = {}
    for (name, value), stem in zip(values.items(), stems, strict=True):
        path = folder / (stem + _suffix(value))
        part = folder / f".{stem}.{os.getpid()}.part"
        part.unlink(missing_ok=True)
        try:
            with part.open("xb") as file:
                _write_one(value, file)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        written[name] = path
    return written


def safe_names(names: Sequence[str]) -> list[str]:
    """One file stem for each name, all different, also where upper and lower case are the same."""
    stems: list[str] = []
    taken: set[str] = set()
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:MAX_NAME_LENGTH].strip(".") or "output"
        if _WINDOWS_DEVICES.match(stem):
            stem = "_" + stem
        unique, number = stem, 1
        while unique.lower() in taken:
            number += 1
            unique = f"{stem}-{number}"
        taken.add(unique.lower())
        stems.append(unique)
    return stems


def _suffix(value: Any) -> str:
    if isinstance(value, (np.ndarray, Typed)):
        return ".npy"
    return ".npz" if isinstance(value, Sparse) else ".json"


def _write_one(value: Any, file: BinaryIO) -> None:
    if isinstance(value, np.ndarray):
        # An object array can only be pickled; as fixed-width text anyone can read it.
        array = value.astype(str) if value.dtype == object else value
        np.save(file, array, allow_pickle=False)
    elif isinstance(value, Typed):
        np.save(file, value.data, allow_pickle=False)  # the raw bits: .npy cannot name the type
    elif isinstance(value, Sparse):
        arrays: dict[str, Any] = {f"indices_{number}": array for number, array in enumerate(value.indices)}
        np.savez(file, values=value.values, dense_shape=np.asarray(value.dense_shape, np.int64), **arrays)
    else:
        file.write(json.dumps(output.jsonable(_tree(value)), indent=2).encode("ascii"))


def _tree(value: Any) -> Any:
    """Sequences as lists, maps as lists of pairs (JSON's keys are only text), arrays as nested lists."""
    if isinstance(value, (list, tuple)):
        return [_tree(item) for item in value]
    if isinstance(value, Mapping):
        return [[_tree(key), _tree(item)] for key, item in value.items()]
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return value
