"""Write a model and its weight file atomically.

All files are created in a folder next to the target, on the same volume, and renamed when they are complete. A
model is never visible together with another model's weight file: if the target is replaced, the old model is
deleted before the new weight file is moved into place, and the new model is moved last.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import TracebackType
from typing import Any

from qnnbridge_host.engine.cpu import require_models_extra
from qnnbridge_host.model.collector import ModelScan
from qnnbridge_host.model.scan import refuse_scanned, scan_model
from qnnbridge_os import files
from qnnbridge_os.missing import why_missing
from qnnbridge_os.outputs import OutputFile, place_of_several
from qnnbridge_protocol.errors import BridgeError, NoSuchFile, OptionError, OrtError

DATA_SUFFIX = ".data"
# Protobuf refuses messages of 2 GiB; a margin is reserved for everything that is not weights.
TOO_LARGE_FOR_ONE_MESSAGE = 2**31 - 2**24

# Errors that mean that the result cannot be written: a command writes nothing else while an `Output` is open.
_ABOUT_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class Output:
    """Destination of a result. A context manager that creates a work folder and removes it at exit.

    Write the model to the path `model`, which has its final name, and a weight file next to it as `data_name`.
    Nothing is written to the target before `commit`.
    """

    def __init__(
        self,
        source: Path,
        target: Path,
        *,
        overwrite: bool,
        source_files: Iterable[Path] = (),
        external: bool = False,
    ) -> None:
        self.data_name = target.name + DATA_SUFFIX
        self._overwrite = overwrite
        self._sources = [source, *source_files]
        # ONNX Runtime would read a file with this suffix as its own format.
        if target.suffix.lower() == ".ort":
            raise OptionError(
                f"{target} would be in ONNX Runtime's own format (.ort); only ONNX files can be written here.",
                fix="Give a name that ends in .onnx.",
            )
        if external:
            target = Path(place_of_several(os.fspath(target)))
            self.data_name = target.name + DATA_SUFFIX
            self._place(target.with_name(self.data_name))
        self.target = target
        self._file = self._place(target)
        self._folder: Path | None = None

    def __enter__(self) -> Output:
        try:
            if self._file.written_through:
                # The target is a device: no folder can be created next to it.
                self._folder = Path(tempfile.mkdtemp(prefix="qnnbridge-"))
            else:
                # Create the folder next to the target, because renaming works only within one file system.
                home = self._file.place.parent
                home.mkdir(parents=True, exist_ok=True)
                self._folder = Path(tempfile.mkdtemp(prefix=".qnnbridge-", dir=home))
            (self._folder / "out").mkdir()
        except OSError as error:
            self._remove()
            raise _explained(self.target, error) or error from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        about_writing = isinstance(error, OSError) and error.errno in _ABOUT_WRITING
        failed = _explained(self.target, error) if about_writing or isinstance(error, OrtError) else None
        self._remove()  # only now: `_explained` has measured how much space was free at the error
        if failed is not None:
            raise failed from None

    def _remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def work(self) -> Path:
        """Folder for intermediate files; the context manager removes it at exit."""
        assert self._folder is not None
        return self._folder

    @property
    def model(self) -> Path:
        return self.work / "out" / ("model.onnx" if self._file.written_through else self.target.name)

    def resized(self, model: Any, source: Path, names: Iterable[str]) -> Path:
        """Save `model`, a changed version of `source` without weights, in the work folder; return its path.

        The weight files are linked into the folder, or copied if linking is impossible. The model is not passed as
        bytes, because some releases of ONNX Runtime do not find the weights of such a model.
        """
        return changed_copy(model, source, names, self.work / "resized")

    def candidate(self, source: Path, names: Iterable[str], folder_name: str = "candidate") -> Path:
        """Return the path at which a caller can save a changed version of `source`, in a folder with its weight
        files."""
        folder = self.work / folder_name
        folder.mkdir()
        link_files(source.parent, names, folder)
        return folder / source.name

    def commit(self) -> tuple[Path, ...]:
        """Move the result to the target; return its files, the model first."""
        data = self.model.with_name(self.data_name)
        # Check again whether the target may be written: the work may have taken minutes.
        self._file.check()
        if not data.exists():
            self._file.take(self.model)
            return (self.target,)
        target = Path(place_of_several(os.fspath(self.target)))
        model_data = target.with_name(self.data_name)
        self._place(model_data)
        # Remove the old model first: with the new weights it would compute wrong results. Readers find no model for
        # a moment.
        target.unlink(missing_ok=True)
        os.replace(data, model_data)
        os.replace(self.model, target)
        return (target, model_data)

    def _place(self, path: Path) -> OutputFile:
        """Return the `OutputFile` for a path of the result. Raise `OptionError` if it must not be written."""
        return OutputFile(path, overwrite=self._overwrite, inputs=self._sources)


def link_files(source: Path, names: Iterable[str], folder: Path) -> None:
    """Link files of one folder into another folder, or copy them if linking is impossible.

    A changed copy of a model needs its weights in its own folder: some releases of ONNX Runtime do not find the
    weights of a model given as bytes.
    """
    for name in filter(inside_folder, names):  # ONNX Runtime refuses paths outside of the folder
        there = folder / name
        there.parent.mkdir(parents=True, exist_ok=True)
        # Callers must not write to `there`: if it is a link, that would change the user's file.
        files.link_or_copy(source / name, there)


def changed_copy(model: Any, source: Path, names: Iterable[str], folder: Path) -> Path:
    """Save `model`, a changed version of `source`, in a new folder with its weight files; return its path.

    Args:
        model: the changed model, a `ModelProto` without weights.
        source: path of the original.
        names: the weight files, relative to the folder of `source`, which are linked into the new folder.
        folder: the folder to create.
    """
    folder.mkdir()
    link_files(source.parent, names, folder)
    path = folder / source.name
    path.write_bytes(model.SerializeToString())
    return path


def _explained(target: Path, error: BaseException | None) -> BridgeError | None:
    """Return an error with cause and fix if `error` occurred while writing the result, ``None`` otherwise."""
    from qnnbridge_host.model import paths

    folder = os.fspath(target.parent)
    if isinstance(error, OSError):
        reason = paths.reason_of(error, folder)
    elif isinstance(error, BridgeError) and paths.is_about_writing(error):
        reason = paths.why_not_written(folder)
    else:
        return None
    return BridgeError(
        f"{target.name} cannot be written to {target.parent.absolute()}.",
        cause=reason,
        fix="Free disk space, or choose another writable folder (-o).",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class GivenModel:
    """A float or quantised model that a command reads. weights: paths of its weight files."""

    path: Path
    scan: ModelScan
    weights: tuple[Path, ...]

    @property
    def needs_external_data(self) -> bool:
        """True if a changed copy needs a separate weight file."""
        return bool(self.weights) or self.scan.size_bytes > TOO_LARGE_FOR_ONE_MESSAGE


def given_model(source: str | os.PathLike[str], command: str, *, count_nodes: bool = False) -> GivenModel:
    """Check a command's model before any other work.

    Args:
        source: path of the model.
        command: the command for messages: "qnnbridge fix".
        count_nodes: whether the scan counts the nodes.

    Raises:
        NoSuchFile: the model or one of its weight files is missing.
        CompiledModelRefused: the model is compiled.
        BridgeError: the extra `[models]` is not installed.
    """
    path = existing_model(Path(source))
    scan = scan_model(path, count_nodes=count_nodes)
    refuse_scanned(scan, command)
    # Check for the extra after the refusal, because a compiled model is refused even with the extra.
    require_models_extra(command)
    return GivenModel(path, scan, tuple(weight_files(path, scan.external_files)))


def existing_model(path: Path) -> Path:
    """Return the path if the file exists, else raise `NoSuchFile`."""
    if not path.exists():
        raise NoSuchFile(f"There is no model file {path}.", **why_missing(path))
    return path


def weight_files(model: Path, names: Iterable[str]) -> list[Path]:
    """Return the paths of a model's external files. Raise `NoSuchFile` if one is missing."""
    found = [model.parent / name for name in names]
    missing = [path for path in found if not path.is_file()]
    if missing:
        raise NoSuchFile(
            f"{model.name} stores weights in {missing[0].name}, which is missing.",
            cause=f"There is no file {missing[0]}.",
            fix="Copy the model with all of its files, without renaming them.",
            details={"missing": [str(path) for path in missing]},
        )
    return found


def total_size(paths: Iterable[Path]) -> int:
    """Return the total size in bytes of the files that exist."""
    return sum(path.stat().st_size for path in paths if path.is_file())


def inside_folder(name: str) -> bool:
    """Return whether a relative path stays in its folder on every system."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    # On Windows a colon follows a drive letter, or precedes the name of an alternate stream.
    if not name or "\0" in name or posix.is_absolute() or windows.drive or windows.root or ":" in name:
        return False
    return ".." not in posix.parts and ".." not in windows.parts


def write_whole(path: Path, text: str) -> None:
    """Write a text file atomically."""
    files.write_whole(path, (text if text.endswith("\n") else text + "\n").encode(), durable=True)
