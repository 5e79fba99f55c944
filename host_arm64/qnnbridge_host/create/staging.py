"""A folder with an ASCII path for the native side, where the path of the model or of its result is not ASCII.

Parts of QNN open files by paths in the system's own code page. So a model with a non-ASCII path is linked (or, on
another volume, copied) to such a folder, with the files that it is made of, and its result is moved from there.
A model that others write to while it is compiled is compiled from a copy of our own, whose hashes are checked.
Invariants: the folder is gone when the block ends.
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
from qnnbridge_host.create.jobs import CompilerInput
from qnnbridge_host.model.source import take_stamp
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.specs import SessionSpec

STAGED_STEM = "qnnbridge_staged_model"


@dataclasses.dataclass(frozen=True, slots=True)
class StagingDir:
    """The paths for the native side.

    folder: for its results. specs: of the jobs, with the paths to read. replaced: staged path -> real one. private:
    all that is read are copies that nobody else knows.
    """

    folder: str
    specs: tuple[SessionSpec, ...]
    replaced: tuple[tuple[str, str], ...] = ()
    private: bool = False

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
def staging_dir(jobs: Sequence[CompilerInput], folder: str, *, copied: bool = False) -> Iterator[StagingDir]:
    """The folders for `jobs` whose results belong in `folder`.

    Args:
        copied: all models are staged, as copies.

    Raises:
        OSError: a copy failed.
        ModelChanged: a copy is not what was hashed.
    """
    specs = tuple(job.spec for job in jobs)
    staged = [job.source.path is not None and (copied or not job.source.path.isascii()) for job in jobs]
    parent = _ascii_place() if any(staged) or not folder.isascii() else None
    if parent is None:
        yield StagingDir(folder, specs)
        return
    with work_folder("compile", parent) as place:
        out = folder
        if copied or not folder.isascii():  # an earlier attempt may have left its files there
            out = os.path.join(place, "out")
            os.mkdir(out)
        new_specs, replaced = [], []
        for index, job in enumerate(jobs):
            spec, path = specs[index], None
            if staged[index]:
                path = _stage(job, os.path.join(place, f"in{index}"), index, copied=copied)
            if path is not None and job.source.path is not None:
                spec = dataclasses.replace(spec, model_path=path)
                replaced.append((path, job.source.path))
            new_specs.append(spec)
        private = copied and len(replaced) == len(jobs)
        yield StagingDir(out, tuple(new_specs), tuple(replaced), private)
        if out != folder:
            for name in sorted(os.listdir(out)):
                shutil.move(os.path.join(out, name), os.path.join(folder, name))


def _ascii_place() -> str | None:
    """A folder with an ASCII path to make another one in, ``None`` if no candidate can be written to."""
    candidates = [tempfile.gettempdir()]
    candidates += [os.environ[name] for name in ("PUBLIC", "ProgramData") if os.environ.get(name)]
    return next((one for one in candidates if one.isascii() and os.access(one, os.W_OK)), None)


def _stage(job: CompilerInput, folder: str, index: int, *, copied: bool) -> str | None:
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
    targets = {source: staged}
    for path, name in beside:
        targets[path] = os.path.join(folder, name)
        os.makedirs(os.path.dirname(targets[path]), exist_ok=True)
    for path, target in targets.items():
        if copied:
            shutil.copyfile(path, target)
        else:
            _link(path, target)
    if copied:
        # Stamps of files so new prove nothing: they are hashed.
        copies = [file._replace(path=targets[file.path]) for file in job.source.known if file.path in targets]
        known = tuple(copy._replace(stamp=take_stamp(copy.path)) for copy in copies)
        job.source._replace(known=known).check_unchanged()
    return staged


def _link(source: str, target: str) -> None:
    try:
        os.link(os.path.realpath(source), target)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        shutil.copyfile(source, target)
