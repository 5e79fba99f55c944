"""Which models are served, under which names: `--model NAME=PATH` and `--models FOLDER`, read. Loads nothing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from qnnbridge_protocol.errors import NoSuchFile, OptionError

DEFAULT_VERSION: Final = "1"
_NAME: Final = re.compile(r"[^/\x00-\x1f\x7f]+")
_VERSION: Final = re.compile(r"[1-9][0-9]{0,17}")


@dataclasses.dataclass(frozen=True, slots=True)
class ModelFile:
    """A model that is to be served, as the command line names it."""

    name: str
    path: Path
    version: str = DEFAULT_VERSION


def find_models(texts: Iterable[str], folders: Iterable[Path]) -> list[ModelFile]:
    """All of them, in order. Raises `OptionError` and `NoSuchFile`."""
    found = [_named(text) for text in texts]
    for folder in folders:
        found += _in_folder(folder)
    if not found:
        raise OptionError("There is no model to serve.", fix="Give --model NAME=FILE.onnx or --models FOLDER.")
    seen: dict[str, ModelFile] = {}
    for model in found:
        if not _NAME.fullmatch(model.name):
            raise OptionError(f"{model.name!r} cannot be a model's name in a URL.", fix="Use --model NAME=PATH.")
        other = seen.setdefault(model.name, model)
        if other is not model:
            raise OptionError(f'Two models are called "{model.name}": {other.path} and {model.path}.')
    return found


def _named(text: str) -> ModelFile:
    name, equals, path = text.partition("=")
    if not equals or not name or not path:
        raise OptionError(
            f'--model "{text}" is not of the form NAME=PATH.', fix="For example --model detector=detector.onnx."
        )
    if not Path(path).is_file():
        raise NoSuchFile(f"There is no model file {path}.")
    return ModelFile(name, Path(path))


def _in_folder(folder: Path) -> Sequence[ModelFile]:
    """`NAME.onnx`, and Triton's `NAME/VERSION/model.onnx`, of which the highest version is taken."""
    if not folder.is_dir():
        raise NoSuchFile(f"There is no folder {folder}.")
    found: list[ModelFile] = []
    for entry in sorted(folder.iterdir()):
        if entry.is_file() and entry.suffix.lower() == ".onnx":
            found.append(ModelFile(entry.stem, entry))
        elif entry.is_dir():
            versions = [int(part.name) for part in entry.iterdir() if _is_version(part)]
            if versions:
                version = str(max(versions))
                found.append(ModelFile(entry.name, entry / version / "model.onnx", version))
    if not found:
        raise OptionError(
            f"There is no model in {folder}.",
            fix="It is to hold NAME.onnx files, or NAME/1/model.onnx as for Triton.",
        )
    return found


def _is_version(folder: Path) -> bool:
    return bool(_VERSION.fullmatch(folder.name)) and (folder / "model.onnx").is_file()
