"""A folder with an ASCII path for the native side, where the path of the model or of its result is not ASCII.

Parts of QNN open files by paths in the system's own code page. So a model with a non-ASCII path is linked (or, on
another volume, copied) to such a folder, with the files that it is made of, and its result is moved from there.
Invariants: it is gone when the block ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence

from qnnbridge_host.cache.work_folder import work_folder
from qnnbridge_host.compile.jobs import CompilerInput
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.specs import SessionSpec

STAGED_STEM = "qnnbridge_staged_model"


@dataclasses.dataclass(frozen=True, slots=True)
class StagingDir:
    """The paths for the native side.

    folder: for its results. specs: of the jobs, with the paths to read. replaced: staged path -> real one.
    """

    folder: str
    specs: tuple[SessionSpec, ...]
    replaced: tuple[tuple[str, str], ...] = ()

    def in_real_words(self, error: BridgeError) -> BridgeError:
        """The error with the paths that its reader knows."""
        for staged, real in self.replaced:
            for old, new in ((staged, real), (os.path.basename(staged), os.path.basename(real))):
                error.message = error.message.replace(old, new)
                error.cause = error.cause.replace(old, new) if error.cause else error.cause
                error.fix = error.fix.replace(old, new) if error.fix else error.fix
                error.evidence = tuple(line.replace(old, new) for line in error.evidence)
        error.args = (error.message,)
        return error


@contextlib.contextmanager
def staging_dir(jobs: Sequence[CompilerInput], folder: str) -> Iterator[StagingDir]:
    """The folders for `jobs` whose results belong in `folder`. Raises the `OSError` of a failed copy."""
    specs = tuple(job.spec for job in jobs)
    staged = [job.source.path is not None and not job.source.path.isascii() for job in jobs]
    parent = _ascii_place() if any(staged) or not folder.isascii() else None
    if parent is None:
        yield StagingDir(folder, specs)
        return
    with work_folder("compile", parent) as place:
        out = folder
        if not folder.isascii():
            out = os.path.join(place, "out")
            os.mkdir(out)
        new_specs, replaced = [], []
        for index, job in enumerate(jobs):
            spec, path = specs[index], None
            if staged[index]:
                path = _stage(job, os.path.join(place, f"in{index}"), index)
            if path is not None and job.source.path is not None:
                spec = dataclasses.replace(spec, model_path=path)
                replaced.append((path, job.source.path))
            new_specs.append(spec)
        yield StagingDir(out, tuple(new_specs), tuple(replaced))
        if out != folder:
            for name in sorted(os.listdir(out)):
                shutil.move(os.path.join(out, name), os.path.join(folder, name))


def _ascii_place() -> str | None:
    """A folder with an ASCII path to make another one in, ``None`` if no candidate can be written to."""
    candidates = [tempfile.gettempdir()]
    candidates += [os.environ[name] for name in ("PUBLIC", "ProgramData") if os.environ.get(name)]
    return next((one for one in candidates if one.isascii() and os.access(one, os.W_OK)), None)


def _stage(job: CompilerInput, folder: str, index: int) -> str | None:
    """The model's path in `folder`; ``None`` if a file of it lies outside of its own folder."""
    source = job.source.path
    assert source is not None
    home = os.path.dirname(source)
    beside = [(path, os.path.relpath(path, home)) for path in job.source.files if os.path.exists(path)]
    if any(name.startswith(os.pardir) or os.path.isabs(name) for _, name in beside):
        return None
    os.mkdir(folder)
    staged = os.path.join(folder, f"{STAGED_STEM}{index}{os.path.splitext(source)[1]}")
    if not staged.isascii():
        staged = os.path.join(folder, f"{STAGED_STEM}{index}.onnx")
    _link(source, staged)
    for path, name in beside:
        target = os.path.join(folder, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _link(path, target)
    return staged


def _link(source: str, target: str) -> None:
    try:
        os.link(os.path.realpath(source), target)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        shutil.copyfile(source, target)
