"""QNN's answers of a verification that is not over: an interrupted one goes on where it was stopped.

A folder in the state directory for each combination of model, options, versions and sizes; a file for each set of
inputs, named by the hash of its values. The folder is removed when the verification is over, or after a week.
A file that cannot be read or written costs the row its memory and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qnnbridge._diagnosis import state_dir

_FOLDER = "verify"
_KEPT_S = 7 * 24 * 3600
# Answers that are larger are computed again.
_MOST_BYTES = 256 << 20


class AnswerJournal:
    """Of one verification.

    Args:
        what: everything that QNN's answers depend on but the inputs.
    """

    def __init__(self, what: Mapping[str, Any]) -> None:
        # `default=str`: what JSON does not know stands for itself in the key.
        text = json.dumps(what, sort_keys=True, default=str)
        self._folder = state_dir() / _FOLDER / hashlib.sha256(text.encode()).hexdigest()[:32]
        _drop_old(self._folder.parent)

    def answer(self, feeds: Mapping[str, Any]) -> list[Any] | None:
        """QNN's values for these inputs from an interrupted run; None if there are none."""
        try:
            # Never with pickle, which runs what a file says.
            with np.load(self._folder / _name_of(feeds), allow_pickle=False) as stored:
                return [stored[str(number)] for number in range(len(stored.files))]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def keep(self, feeds: Mapping[str, Any], values: Sequence[Any]) -> None:
        # Other types would need pickle.
        plain = all(isinstance(value, np.ndarray) and value.dtype.kind in "biufc" for value in values)
        if not plain or sum(value.nbytes for value in values) > _MOST_BYTES:
            return
        path = self._folder / _name_of(feeds)
        # By process: two verifications of one model may run at once.
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                np.savez(file, **{str(number): value for number, value in enumerate(values)})
            part.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def over(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def file_digest(path: Path, others: Sequence[Path] = ()) -> str:
    """Of a model and its weight files."""
    digest = hashlib.sha256()
    for one in (path, *others):
        with one.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def _name_of(feeds: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(feeds):
        value = np.ascontiguousarray(feeds[name])
        digest.update(f"{name}:{value.dtype.str}:{value.shape}:".encode())
        # The bytes of text arrays are addresses of Python objects.
        digest.update(repr(value.tolist()).encode() if value.dtype == object else value.tobytes())
    return f"{digest.hexdigest()[:32]}.npz"


def _drop_old(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if time.time() - path.stat().st_mtime > _KEPT_S:
                shutil.rmtree(path, ignore_errors=True)
