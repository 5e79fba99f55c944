"""The inputs of a run: read from .npy and .npz files, or made up by declared type. Never unpickles anything."""

from __future__ import annotations

import dataclasses
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_host.numerics.sampling import DeclaredInput, full_shape, random_value
from qnnbridge_protocol import elements
from qnnbridge_protocol.errors import NotImplemented as NotCarried
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.tensors import Typed
from qnnbridge_tools.arguments import InputFile


@dataclasses.dataclass(frozen=True, slots=True)
class Feed:
    """One input value and where it comes from."""

    name: str
    value: Any
    source: str


def load(files: Iterable[InputFile], archive: Path | None) -> list[Feed]:
    """Every array that the command line names; done before a host is started, because it is quick to fail."""
    feeds = [
        Feed(file.name, _load_one(file), f"{file.path}:{file.key}" if file.key is not None else str(file.path))
        for file in files
    ]
    if archive is not None:
        given = {feed.name for feed in feeds}
        loaded = _opened(archive)
        if isinstance(loaded, np.ndarray):
            raise OptionError(f"{archive} is one array, not an .npz archive.", fix=f"--input NAME={archive}")
        with loaded:
            for name in loaded.files:
                if name in given:
                    raise OptionError(
                        f'"{name}" is given by --input and is in {archive}, too.', fix="Give it once."
                    )
                feeds.append(Feed(name, _array(loaded, name, archive), f"{archive}:{name}"))
    return feeds


def complete(
    declared: Sequence[DeclaredInput], loaded: Sequence[Feed], dimensions: Dimensions, *, seed: int | None
) -> list[Feed]:
    """The values to run with: the loaded ones, and made-up ones for the rest if there is a seed."""
    nodes = {node.name: node for node in declared}
    feeds = [
        dataclasses.replace(feed, value=_as_declared(feed, nodes[feed.name], dimensions))
        if feed.name in nodes
        else feed
        for feed in loaded
    ]
    missing = [node for node in declared if node.name not in {feed.name for feed in feeds}]
    if missing and seed is None:
        names = ", ".join(node.name for node in missing)
        raise OptionError(
            f"No value for {'input' if len(missing) == 1 else 'inputs'} {names}.",
            fix=f"Give --input {missing[0].name}=FILE.npy for each, or --random to make values up.",
        )
    if seed is not None:
        rng = np.random.default_rng(seed)
        for node in missing:
            value = random_value(node.name, node.type, full_shape(node.name, node.shape, dimensions), rng)
            feeds.append(Feed(node.name, value, f"random, seed {seed}"))
    return feeds


def _load_one(file: InputFile) -> npt.NDArray[Any]:
    loaded = _opened(file.path)
    if isinstance(loaded, np.ndarray):
        if file.key is not None:
            raise OptionError(f"{file.path} holds one array, it has no key {file.key}.")
        return loaded
    with loaded:
        if file.key is None:
            if len(loaded.files) != 1:
                raise OptionError(
                    f"{file.path} holds {len(loaded.files)} arrays: {', '.join(loaded.files)}.",
                    fix=f"Name one: --input {file.name}={file.path}:KEY, or give all with --inputs {file.path}.",
                )
            file = dataclasses.replace(file, key=loaded.files[0])
        if file.key not in loaded.files:
            raise OptionError(f'{file.path} holds no array "{file.key}", but {", ".join(loaded.files) or "none"}.')
        return _array(loaded, file.key, file.path)


def _array(archive: np.lib.npyio.NpzFile, key: str, path: Path) -> npt.NDArray[Any]:
    try:
        found = archive[key]
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        # MemoryError: a damaged header may claim any size.
        raise _unreadable(path, error) from None
    if not isinstance(found, np.ndarray):
        raise _unreadable(path, ValueError(f"{key} in it is no array"))
    return found


def _opened(path: Path) -> npt.NDArray[Any] | np.lib.npyio.NpzFile:
    try:
        loaded = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise OptionError(f"There is no file {path}.") from None
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        # Of any other file numpy says that it holds pickled data, and how to load that in spite of it.
        if isinstance(error, ValueError) and not _begins_as_arrays(path):
            error = ValueError("it begins neither as a .npy nor as a .npz file does")
        raise _unreadable(path, error) from None
    if not isinstance(loaded, (np.ndarray, np.lib.npyio.NpzFile)):
        raise _unreadable(path, ValueError(f"it holds a {type(loaded).__name__}"))
    return loaded


def _begins_as_arrays(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(6).startswith((b"\x93NUMPY", b"PK"))


def _unreadable(path: Path, error: BaseException) -> OptionError:
    return OptionError(
        f"{path} cannot be read as a numpy array.",
        cause=str(error) or type(error).__name__,
        fix="Write it with numpy.save or numpy.savez, without Python objects in it.",
    )


def _as_declared(feed: Feed, node: DeclaredInput, dimensions: Dimensions) -> Any:
    """Raw bytes become a tensor of a type that .npy cannot name (bfloat16, float8, int4) where one is declared."""
    try:
        element = elements.from_ort_type(node.type).element
    except NotCarried:
        return feed.value  # the session refuses it with the better text
    if element is None or elements.LAYOUTS[element].named:
        return feed.value
    layout = elements.LAYOUTS[element]
    # Another type has other bits; a conversion by value would give numbers that nobody meant.
    if feed.value.dtype != layout.storage:
        raise OptionError(
            f'Input "{feed.name}" is {element.text}, {feed.source} holds {feed.value.dtype}.',
            cause=f"A .npy file cannot name {element.text}.",
            fix=f"Save the raw bits as {layout.storage.name}"
            + (", packed from the lowest bit up." if layout.packed else "."),
        )
    shape = full_shape(feed.name, node.shape, dimensions) if layout.packed else feed.value.shape
    return Typed(feed.value, element, shape)
