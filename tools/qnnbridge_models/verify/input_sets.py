"""The inputs to verify with: given in files, and extreme ones, as data; the sizes of free dimensions.

Nothing is ever unpickled. `limit` marks extremes on which no computation in half floats can agree with the CPU: a
difference there is reported, and does not make a model bad.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_host.numerics.sampling import NamedFeeds
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_tools import feeds
from qnnbridge_tools.arguments import InputFile, read_input_files, refuse_unknown_of

Array = npt.NDArray[Any]
# Every seventh value is NaN or infinite: data with some holes in it.
_EVERY = 7
_WIDE_BYTES = 4
# The lower half is 5: what comes back shows whether the upper one was lost.
BIG_INTEGER = 2**33 + 5
# Half floats hold 1e4 and end at 65504, below 1e5; the square of 1e-5 is 0 in them.
LARGE = 1e4
HUGE = 1e5
TINY = 1e-5
# Operators that make a tensor as large as a number says: with 2**33 there they ask for gigabytes, or never end.
SIZE_MAKERS = frozenset(
    (
        *("ConstantOfShape", "EyeLike", "Expand", "OneHot", "Pad", "Range", "Resize", "Tile", "Upsample"),
        *("HammingWindow", "HannWindow", "BlackmanWindow", "RandomNormal", "RandomUniform", "Loop", "Scan"),
    )
)


@dataclasses.dataclass(frozen=True, slots=True)
class FixedSizes:
    """Of all free dimensions.

    Args:
        by_name: those that a session takes by name.
        all_named: these are all there are.
    """

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

    def shown(self) -> dict[str, int]:
        """For a person: by name where there is one."""
        named = dict(self.by_name)
        return named if self.all_named else {f"{name}:{axis}": size for (name, axis), size in self.by_axis.items()}


def read_given(texts: Iterable[str | os.PathLike[str]], inputs: Sequence[NodeInfo]) -> list[NamedFeeds]:
    """Each file has all inputs: an .npz by their names, an .npy for a model with one. `NAME=FILE` together are one
    set. Raises `OptionError`."""
    files, paths = read_input_files(os.fspath(text) for text in texts)
    given = [_read_one(path, inputs) for path in paths]
    if files:
        found = {feed.name: feed.value for feed in feeds.load(files, None)}
        given.append(_complete("files", ", ".join(str(file.path) for file in files), found, inputs))
    return given


def _read_one(path: Path, inputs: Sequence[NodeInfo]) -> NamedFeeds:
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
    return _complete(path.name, str(path), {feed.name: feed.value for feed in loaded}, inputs)


def _complete(name: str, where: str, found: dict[str, Any], inputs: Sequence[NodeInfo]) -> NamedFeeds:
    names = [node.name for node in inputs]
    unknown, missing = [n for n in found if n not in names], [n for n in names if n not in found]
    if unknown or missing:
        wrong = f"has no array {', '.join(missing)}" if missing else f"has {', '.join(unknown)}, which is no input"
        raise OptionError(
            f"{where} {wrong}.",
            cause=f"The model's inputs: {', '.join(names) or 'none'}. The arrays: {', '.join(found) or 'none'}.",
            fix="Save them under the names of the inputs: numpy.savez(FILE, name=array, ...).",
        )
    return NamedFeeds(name, {name: found[name] for name in names})


def sizes_of(inputs: Sequence[NodeInfo], dims: Dimensions, given: Sequence[NamedFeeds]) -> FixedSizes:
    """The sizes of `--dim`, and for the rest those of the given inputs. Raises `OptionError` for missing ones."""
    by_axis: dict[tuple[str, int], int] = {}
    by_name: dict[str, int] = {}
    all_named, missing = True, dict[str, None]()
    for node in inputs:
        for axis, dim in enumerate(node.shape or ()):
            if isinstance(dim, int) and dim >= 0:
                continue
            # 0 is no size: given inputs that are empty say nothing about it.
            size = dims.size_of(node.name, axis, dim) or _size_in(given, node.name, axis)
            if not size:
                missing[dim if isinstance(dim, str) and dim else f"{node.name}:{axis}"] = None
                continue
            by_axis[node.name, axis] = size
            # ONNX does not forbid one name for two sizes: a PaddleOCR model calls height and width "?". A session's
            # override by name would give both the same size.
            if not isinstance(dim, str) or by_name.setdefault(dim, size) != size:
                all_named = False
    # Before the missing ones: a misspelt --dim leaves a size missing, too, and the message is about the spelling.
    refuse_unknown_of(inputs, dims)
    if missing:
        raise OptionError(
            f"The model has free dimensions without a size: {', '.join(missing)}.",
            cause="QNN takes fixed shapes only.",
            fix="Give the sizes that it is used with: " + " ".join(f'--dim "{name}=SIZE"' for name in missing),
        )
    return FixedSizes(by_axis, by_name, all_named)


def _size_in(given: Sequence[NamedFeeds], name: str, axis: int) -> int | None:
    for one in given:
        shape = one.feeds[name].shape
        if axis < len(shape):
            return int(shape[axis])
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class ExtremeInput:
    """One kind of extreme values.

    Args:
        takes: whether an array can hold it.
        put: the array with it, made from an ordinary one.
    """

    name: str
    limit: bool
    takes: Callable[[Array], bool]
    put: Callable[[Array], Array]
    # Must not be tried on a model that may take the numbers for sizes.
    as_sizes: bool = False
    # Of integers: ids, masks and the like are left as they are.
    of_numbers: bool = False


def _is_float(value: Array) -> bool:
    return value.dtype.kind == "f"


def _holds(number: float) -> Callable[[Array], bool]:
    # float16 ends at 65504: such an input gets the row of 1e4, and none of 1e5.
    return lambda value: value.dtype.kind == "f" and float(np.finfo(value.dtype).max) > number


def _scattered(numbers: tuple[float, ...]) -> Callable[[Array], Array]:
    def put(value: Array) -> Array:
        changed = np.array(value)
        flat = changed.reshape(-1)
        for start, number in enumerate(numbers):
            # The second number begins elsewhere, so that it does not replace the first.
            flat[min(start * (_EVERY // 2), flat.size - 1) :: _EVERY] = number
        return changed

    return put


def _spread(most: float) -> Callable[[Array], Array]:
    """0..1 becomes -most..most."""
    return lambda value: np.asarray((value.astype(np.float64) * 2 - 1) * most).astype(value.dtype)


def _full_of(number: int) -> Callable[[Array], Array]:
    return lambda value: np.asarray(np.full_like(value, number))


# Ordinary numbers do not show these faults. A speech detector (Silero) gave -98304 and 98304 in place of
# probabilities for frames of a real recording, and lost its state after digital silence; on random inputs its
# cosine was 1.
EXTREMES = (
    ExtremeInput("NaN", True, _is_float, _scattered((float("nan"),))),
    ExtremeInput("infinity", True, _is_float, _scattered((float("inf"), float("-inf")))),
    # `verifier._WORTH_BISECTING` has this name.
    ExtremeInput("large: up to 1e4", True, _holds(LARGE), _spread(LARGE)),
    ExtremeInput("beyond half floats: up to 1e5", True, _holds(HUGE), _spread(HUGE)),
    ExtremeInput("tiny: up to 1e-5", True, _is_float, _spread(TINY)),
    ExtremeInput(
        # As an index -1 counts from the end, which QNN does not do with every operator.
        "negative numbers (-1)",
        False,
        lambda value: value.dtype.kind == "i" and value.dtype.itemsize >= _WIDE_BYTES,
        _full_of(-1),
        of_numbers=True,
    ),
    ExtremeInput(
        "integers beyond 32 bits",
        False,
        lambda value: value.dtype.kind in "iu" and value.dtype.itemsize > _WIDE_BYTES,
        _full_of(BIG_INTEGER),
        as_sizes=True,
        of_numbers=True,
    ),
)


def applied(extreme: ExtremeInput, feeds: Mapping[str, Any], codes: Collection[str] = ()) -> dict[str, Any] | None:
    """The feeds with the extreme in every input that takes it; None if none does. codes: inputs of ids, masks."""
    taking = [
        name
        for name, value in feeds.items()
        if isinstance(value, np.ndarray) and extreme.takes(value) and not (extreme.of_numbers and name in codes)
    ]
    # Arrays without elements hold no extreme value.
    if not any(feeds[name].size for name in taking):
        return None
    return {name: extreme.put(value) if name in taking else value for name, value in feeds.items()}


def why_not(extreme: ExtremeInput, operators: Mapping[str, int]) -> str:
    """The reason against trying it on a model with these operators; empty if there is none."""
    makers = sorted(SIZE_MAKERS & set(operators))
    if not extreme.as_sizes or not makers:
        return ""
    return f"the model may take the numbers for sizes ({', '.join(makers[:3])}), and would ask for gigabytes"
