"""Writes a model and its weight file whole or not at all.

Everything is made in a folder beside the target, on the same volume, and renamed when it is complete. A model that
refers to another file is never seen together with a wrong one: if the target is replaced, it is taken away before
its new weight file comes, and put in place last.
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
from qnnbridge_os.outputs import OutputFile, place_of_several
from qnnbridge_protocol.errors import BridgeError, NoSuchFile, OptionError, OrtError

DATA_SUFFIX = ".data"
# protobuf refuses messages of 2 GiB; a little is left for names and shapes.
TOO_LARGE_FOR_ONE_MESSAGE = 2**31 - 2**24

# Wherever they come from: nothing but the result is written.
_ABOUT_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class Output:
    """The place of one result; a context manager, because the folder for the work must go.

    `model` is where to write the model, under its final name; a weight file goes beside it as `data_name`.
    Nothing is at the target before `commit`.
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
        # ONNX Runtime goes by this ending and would not read the ONNX file back.
        if target.suffix.lower() == ".ort":
            raise OptionError(
                f"{target} would be in ONNX Runtime's own format (.ort), which is not what is written here.",
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
                # Nothing is made beside a device.
                self._folder = Path(tempfile.mkdtemp(prefix="qnnbridge-"))
            else:
                # Beside the file itself: a rename replaces it only within one file system.
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
        self._remove()  # what is free was looked at before
        if failed is not None:
            raise failed from None

    def _remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def work(self) -> Path:
        """A folder for intermediate files; gone afterwards."""
        assert self._folder is not None
        return self._folder

    @property
    def model(self) -> Path:
        return self.work / "out" / ("model.onnx" if self._file.written_through else self.target.name)

    def resized(self, model: Any, source: Path, names: Iterable[str]) -> Path:
        """A copy of `source` in the work folder as `model` (a `ModelProto` without weights) has it now.

        Its weight files are linked there, or copied where that is impossible: not every ONNX Runtime finds the
        weights of a model that comes as bytes.
        """
        return changed_copy(model, source, names, self.work / "resized")

    def candidate(self, source: Path, names: Iterable[str], folder_name: str = "candidate") -> Path:
        """A path to write a changed `source` to and load it from: the weight files are there, the model is not."""
        folder = self.work / folder_name
        folder.mkdir()
        link_files(source.parent, names, folder)
        return folder / source.name

    def commit(self) -> tuple[Path, ...]:
        """Moves the result into place; gives its files, the model first."""
        data = self.model.with_name(self.data_name)
        # Looked at again, since the work may have taken minutes.
        self._file.check()
        if not data.exists():
            self._file.take(self.model)
            return (self.target,)
        target = Path(place_of_several(os.fspath(self.target)))
        model_data = target.with_name(self.data_name)
        self._place(model_data)
        # A reader finds no model for a moment. The old one beside the new weights would give it wrong numbers.
        target.unlink(missing_ok=True)
        os.replace(data, model_data)
        os.replace(self.model, target)
        return (target, model_data)

    def _place(self, path: Path) -> OutputFile:
        """Where a file of the result goes. Raises `OptionError` if it must not go there."""
        return OutputFile(path, overwrite=self._overwrite, inputs=self._sources)


def link_files(source: Path, names: Iterable[str], folder: Path) -> None:
    """The named files of one folder in another one, without copying their bytes where that is possible.

    Not every ONNX Runtime finds the weights of a model that comes as bytes, so a changed copy needs them beside it.
    """
    for name in filter(inside_folder, names):  # ONNX Runtime refuses the others
        there = folder / name
        there.parent.mkdir(parents=True, exist_ok=True)
        # It stays the user's own file: what opens this name for writing would change the original.
        files.link_or_copy(source / name, there)


def changed_copy(model: Any, source: Path, names: Iterable[str], folder: Path) -> Path:
    """`source` as `model` (a `ModelProto` without weights) has it now, in a new folder with its weight files.

    Args:
        names: of the weight files, which are linked there.
    """
    folder.mkdir()
    link_files(source.parent, names, folder)
    path = folder / source.name
    path.write_bytes(model.SerializeToString())
    return path


def _explained(target: Path, error: BaseException | None) -> BridgeError | None:
    """The explained error if it is about the folder of the result, ``None`` if it is about something else."""
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
        fix="Make room there or choose another folder (-o) that can be written to.",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class GivenModel:
    """A float or quantised model that a command works on. weights: its other files."""

    path: Path
    scan: ModelScan
    weights: tuple[Path, ...]

    @property
    def needs_external_data(self) -> bool:
        """Whether a changed copy needs a weight file beside it."""
        return bool(self.weights) or self.scan.size_bytes > TOO_LARGE_FOR_ONE_MESSAGE


def given_model(source: str | os.PathLike[str], command: str, *, count_nodes: bool = False) -> GivenModel:
    """Checks that there is a model to work on, before anything else is done.

    Args:
        source: path of the model.
        command: the words for the user: "qnnbridge fix".
        count_nodes: for the scan.

    Raises:
        NoSuchFile: the model or a file of its weights is not there.
        CompiledModelRefused: it is compiled.
        BridgeError: the extra `[models]` is not installed.
    """
    path = existing_model(Path(source))
    scan = scan_model(path, count_nodes=count_nodes)
    refuse_scanned(scan, command)
    require_models_extra(command)  # behind the guard: installing it would not help with a compiled model
    return GivenModel(path, scan, tuple(weight_files(path, scan.external_files)))


def existing_model(path: Path) -> Path:
    """The path, or an error that says what is wrong with it."""
    if not path.exists():
        raise NoSuchFile(f"There is no model file {path}.")
    return path


def weight_files(model: Path, names: Iterable[str]) -> list[Path]:
    """The files that hold a model's external tensors, by the names it has for them; all of them are there."""
    found = [model.parent / name for name in names]
    missing = [path for path in found if not path.is_file()]
    if missing:
        raise NoSuchFile(
            f"{model.name} keeps weights in {missing[0].name}, which is not beside it.",
            cause=f"There is no file {missing[0]}.",
            fix="Copy the model with all of its files, under the names that they had.",
            details={"missing": [str(path) for path in missing]},
        )
    return found


def total_size(paths: Iterable[Path]) -> int:
    """Bytes of those files that are there."""
    return sum(path.stat().st_size for path in paths if path.is_file())


def inside_folder(name: str) -> bool:
    """Whether a relative path stays in its folder on every system."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    # On Windows a colon ends a drive, or begins the name of a second stream of a file.
    if not name or "\0" in name or posix.is_absolute() or windows.drive or windows.root or ":" in name:
        return False
    return ".." not in posix.parts and ".." not in windows.parts


def write_whole(path: Path, text: str) -> None:
    """The file is the old one or the new one, never half of it."""
    files.write_whole(path, (text if text.endswith("\n") else text + "\n").encode(), durable=True)
