"""The destination of a compiled model: the path of `output`, and the working folder until the model is complete.

The working folder is hidden, on the volume of the result, held by an OS lock as long as its owner lives, and gone
when the block ends. The next compilation into the same folder removes the leftovers of a killed owner: it finds the
lock free. Any process, any thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Final

from qnnbridge_host.create.jobs import MODEL_SUFFIX, WITHOUT_A_NAME, blob_of, context_stem, safe_stem, stem_of
from qnnbridge_host.model.source import ModelSource
from qnnbridge_host.model.writing import from_os
from qnnbridge_protocol.errors import OptionError

PREFIX: Final = ".qnnbridge-compile-"
LOCK: Final = ".lock"
# Younger folders are left alone: their owner may be about to take the lock.
SETTLED_S: Final = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Destination:
    """folder: absolute. model: file name of the .onnx in it."""

    folder: str
    model: str

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self.model)

    def file_stem(self) -> str:
        """The stem to compile under. An existing context binary may belong to another model and is
        never replaced: an .onnx file beside a blob that is not its own computes wrong numbers."""
        stem = safe_stem(stem_of(self.model))
        if os.path.lexists(os.path.join(self.folder, blob_of(stem))):
            return safe_stem(f"{stem}-{secrets.token_hex(4)}")
        return stem


def destination_of(source: ModelSource, output: str | None, cwd: str, *, tag: str = "") -> Destination:
    """The path of `output`: default ``<stem>_ctx.onnx`` beside the model, the same name in a given folder. A name
    without a suffix is a folder.

    cwd: absolute, the base of relative paths. tag: follows the model's stem in a name that is not
    given. Raises `OptionError` for a name that ONNX Runtime would load as something else, and for the model
    itself.
    """
    home = os.path.dirname(source.path) if source.path is not None else cwd
    stem = stem_of(source.path) if source.path is not None else WITHOUT_A_NAME
    name = context_stem(stem + tag) + MODEL_SUFFIX
    if output is None:
        place = Destination(home, name)
    else:
        text = output
        path = os.path.normpath(os.path.join(cwd, text))
        if os.path.isdir(path) or text.endswith(("/", os.sep)) or not os.path.splitext(path)[1]:
            place = Destination(path, name)
        else:
            if not path.lower().endswith(MODEL_SUFFIX):
                raise OptionError(
                    f"The output {text} does not end in .onnx.",
                    cause="ONNX Runtime goes by the end of the name, and loads anything else as another format.",
                    fix="Give a file name that ends in .onnx, or a folder (ending in a slash if it has a dot).",
                )
            place = Destination(os.path.dirname(path), os.path.basename(path))
            _check_name(stem_of(path))
    if source.path is not None and os.path.exists(place.path) and os.path.samefile(place.path, source.path):
        raise OptionError("The output is the model itself.", fix="Give another output.")
    return place


def _check_name(stem: str) -> None:
    safe = safe_stem(stem)
    if safe == stem:
        return
    cause = "QNN takes two dots in a row for a way out of the folder, and would never load the result."
    if ".." not in stem:
        cause = "The names of the files that belong to it would be longer than file systems take."
    raise OptionError(
        f"A compiled model cannot be called {stem}.onnx.", cause=cause, fix=f"Call it {safe}.onnx, for example."
    )


@contextlib.contextmanager
def work_folder(target: str) -> Iterator[str]:
    """A new folder inside of `target`, which is created if it is missing. Raises `CompileFailed`."""
    from filelock import FileLock

    made = _make(target)
    folder = None
    try:
        sweep(target)
        try:
            folder = tempfile.mkdtemp(prefix=PREFIX, dir=target)
            lock = FileLock(os.path.join(folder, LOCK))
            lock.acquire(blocking=False)
        except OSError as error:
            raise from_os(error, target) from None
        try:
            inner = os.path.join(folder, "out")
            os.mkdir(inner)
            yield inner
        finally:
            lock.release()
    except BaseException:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        for path in made:
            with contextlib.suppress(OSError):
                os.rmdir(path)  # only if it is empty
        raise
    shutil.rmtree(folder, ignore_errors=True)


def sweep(target: str) -> None:
    """Remove leftovers of killed compilations in `target`."""
    from filelock import FileLock, Timeout

    with contextlib.suppress(OSError):
        for entry in list(os.scandir(target)):
            lock_path = os.path.join(entry.path, LOCK)
            if not entry.name.startswith(PREFIX) or not os.path.exists(lock_path):
                continue
            if 0 <= time.time() - entry.stat().st_mtime < SETTLED_S:
                continue
            lock = FileLock(lock_path)
            try:
                lock.acquire(blocking=False)
            except (Timeout, OSError):
                continue
            lock.release()
            shutil.rmtree(entry.path, ignore_errors=True)


def _make(target: str) -> list[str]:
    """Make the folder; which ones that took, the innermost first."""
    missing = []
    path = target
    while not os.path.isdir(path):
        missing.append(path)
        parent = os.path.dirname(path)
        if parent == path:
            break
        path = parent
    try:
        os.makedirs(target, exist_ok=True)
    except OSError as error:
        raise from_os(error, target) from None
    return missing
