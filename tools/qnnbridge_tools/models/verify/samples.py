"""The ordinary inputs: given in files, or made up; and the sizes of free dimensions. Nothing is ever unpickled."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_tools import feeds
from qnnbridge_tools.arguments import Dimensions, InputFile
from qnnbridge_tools.free_dimensions import refuse_unknown_of


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """One file of `--input`."""

    name: str
    feeds: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """Of all free dimensions. by_name: those that a session can be told. all_named: these are all there are."""

    by_axis: Mapping[tuple[str, int], int]
    by_name: Mapping[str, int]
    all_named: bool

    @property
    def dimensions(self) -> Dimensions:
        return Dimensions({}, dict(self.by_axis))

    def of(self, inputs: Iterable[NodeInfo]) -> list[NodeInfo]:
        """The inputs as they are with these sizes."""
        return [
            dataclasses.replace(
                node,
                shape=tuple(self.by_axis.get((node.name, axis), dim) for axis, dim in enumerate(node.shape)),
            )
            if node.shape is not None
            else node
            for node in inputs
        ]

    def told(self) -> dict[str, int]:
        """For a person: by name where there is one."""
        named = dict(self.by_name)
        return named if self.all_named else {f"{name}:{axis}": size for (name, axis), size in self.by_axis.items()}


def read(paths: Sequence[Path], inputs: Sequence[NodeInfo]) -> list[Given]:
    """Each file has all inputs: an .npz by their names, an .npy for a model with one. Raises `OptionError`."""
    return [_read_one(path, inputs) for path in paths]


def _read_one(path: Path, inputs: Sequence[NodeInfo]) -> Given:
    names = [node.name for node in inputs]
    if path.suffix.lower() == ".npy":
        if len(names) != 1:
            raise OptionError(
                f"{path} holds one array, and the model has {len(names)} inputs: {', '.join(names) or 'none'}.",
                fix="Put all of them into one .npz file by their names: numpy.savez(FILE, name=array, ...).",
            )
        loaded = feeds.load([InputFile(names[0], path)], None)
    else:
        loaded = feeds.load([], path)
    found = {feed.name: feed.value for feed in loaded}
    unknown, missing = [n for n in found if n not in names], [n for n in names if n not in found]
    if unknown or missing:
        wrong = f"has no array {', '.join(missing)}" if missing else f"has {', '.join(unknown)}, which is no input"
        raise OptionError(
            f"{path} {wrong}.",
            cause=f"The model's inputs: {', '.join(names) or 'none'}. The arrays: {', '.join(found) or 'none'}.",
            fix="Save them under the names of the inputs: numpy.savez(FILE, name=array, ...).",
        )
    return Given(path.name, {name: found[name] for name in names})


def sizes_of(inputs: Sequence[NodeInfo], dims: Dimensions, given: Sequence[Given]) -> Sizes:
    """What `--dim` says, and for the rest what the given inputs have. Raises `OptionError` for what is missing."""
    by_axis: dict[tuple[str, int], int] = {}
    by_name: dict[str, int] = {}
    all_named, missing = True, dict[str, None]()
    for node in inputs:
        for axis, dim in enumerate(node.shape or ()):
            if isinstance(dim, int) and dim >= 0:
                continue
            size = dims.size_of(node.name, axis, dim) or _size_in(given, node.name, axis)
            if not size:
                missing[dim if isinstance(dim, str) and dim else f"{node.name}:{axis}"] = None
                continue
            by_axis[node.name, axis] = size
            if not isinstance(dim, str) or by_name.setdefault(dim, size) != size:
                all_named = False
    refuse_unknown_of(inputs, dims)
    if missing:
        raise OptionError(
            f"The model has free dimensions without a size: {', '.join(missing)}.",
            cause="QNN takes fixed shapes only.",
            fix="Give the sizes that it is used with: " + " ".join(f'--dim "{name}=SIZE"' for name in missing),
        )
    return Sizes(by_axis, by_name, all_named)


def _size_in(given: Sequence[Given], name: str, axis: int) -> int | None:
    for one in given:
        shape = one.feeds[name].shape
        if axis < len(shape):
            return int(shape[axis])
    return None
