"""Parse the `NAME=VALUE` arguments of commands, and turn ``--dim`` into session options.

An invalid value raises `OptionError`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnbridge_host.graph.shapes import Dimensions, FreeAxis, options_text, refuse_unknown_names
from qnnbridge_protocol.errors import BridgeError, OptionError, PlacementRefused

if TYPE_CHECKING:
    from qnnbridge import SessionOptions
    from qnnbridge_host.model.collector import ModelScan
    from qnnbridge_host.numerics.sampling import DeclaredInput


@dataclasses.dataclass(frozen=True, slots=True)
class InputFile:
    """One `--input`: an .npy file, or one array of an .npz archive."""

    name: str
    path: Path
    key: str | None = None


def read_inputs(texts: Iterable[str]) -> list[InputFile]:
    """Parse values of `--input`, such as `x=image.npy` or `x=all.npz:key`, without reading the files."""
    read: list[InputFile] = []
    for text in texts:
        name, equals, rest = text.partition("=")
        if not equals or not name or not rest:
            raise OptionError(
                f'--input "{text}" is not of the form NAME=FILE.npy.',
                fix="Give the input's name, an equals sign and a file: --input x=image.npy or x=all.npz:KEY.",
            )
        if any(name == other.name for other in read):
            raise OptionError(f'--input is given twice for "{name}".', fix="Give each input one file.")
        # Require .npz before the colon, because Windows paths contain a colon, too.
        archive = re.fullmatch(r"(.*\.npz):(.+)", rest, re.IGNORECASE)
        if archive:
            read.append(InputFile(name, Path(archive[1]), archive[2]))
        else:
            read.append(InputFile(name, Path(rest)))
    return read


def read_input_files(texts: Iterable[str]) -> tuple[list[InputFile], list[Path]]:
    """Parse `--input`; return (files of single inputs: `NAME=FILE.npy`, files with all inputs: `FILE.npz`)."""
    read = list(texts)
    whole = [text for text in read if _is_whole(text)]
    return read_inputs(text for text in read if text not in whole), [Path(text) for text in whole]


def _is_whole(text: str) -> bool:
    # A text with an equals sign is NAME=FILE, unless a file with this whole text as its path exists.
    return text.lower().endswith((".npz", ".npy")) and ("=" not in text or Path(text).exists())


def read_one_set(texts: Iterable[str]) -> tuple[list[InputFile], Path | None]:
    """Parse `--input` of a command that runs once; return (files of single inputs, archive or ``None``)."""
    files, archives = read_input_files(texts)
    if len(archives) > 1:
        raise OptionError("--input is given two archives.", fix="Put all inputs into one .npz file.")
    return files, archives[0] if archives else None


def input_paths(texts: Iterable[str]) -> list[Path]:
    """Return all files of `--input`."""
    files, archives = read_input_files(texts)
    return [*(file.path for file in files), *archives]


def read_dimensions(texts: Iterable[str]) -> Dimensions:
    """Read `batch=1` (by the dimension's name) or `x:0=1` (by input and axis)."""
    sizes: dict[str, int] = {}
    for text in texts:
        # Split at the last equals sign, because the name of a dimension may contain one.
        name, equals, size_text = text.rpartition("=")
        if not equals or not name or not _is_size(size_text):
            if equals and size_text == "SIZE":
                raise OptionError(
                    f'--dim "{text}" has no size yet.',
                    fix="Replace SIZE with a whole number: the size that your application uses.",
                )
            raise OptionError(
                f'--dim "{text:.200}" is not of the form NAME=SIZE with a size from 1 to {MOST_SIZE}.',
                fix="Give the name of the free dimension, or the input and axis: --dim batch=1 or --dim x:0=1.",
            )
        sizes[name] = int(size_text)
    return Dimensions.of(sizes)


def read_shapes(texts: Iterable[str]) -> dict[str, list[int | None]]:
    """Read `x=1,3,48,192`; `?` stands for an axis that is not changed, and `x=` is the shape of a scalar."""
    read: dict[str, list[int | None]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        # Also accept 1x3x48x192, the notation of reports.
        words = re.split(r"[,x]", sizes) if sizes else []
        if not equals or not name or not all(word == "?" or _is_size(word) for word in words):
            raise OptionError(
                f'--shape "{text:.200}" is not of the form INPUT=SIZE,SIZE,... with sizes from 1 to {MOST_SIZE}.',
                fix="Give the input and all of its sizes: --shape x=1,3,48,192. ? keeps the size of an axis.",
            )
        if name in read:
            raise OptionError(f'--shape is given twice for "{name}".', fix="Give each input one shape.")
        read[name] = [None if word == "?" else int(word) for word in words]
    return read


def read_constants(texts: Iterable[str]) -> dict[str, Any]:
    """Return the value that `--constant` gives to each input, a number or a list: `sr=16000`, `size=480,640`."""
    from qnnbridge_protocol.input_constants import plain_constants

    read: dict[str, Any] = {}
    for text in texts:
        name, equals, numbers = text.rpartition("=")
        cause = None
        try:
            values = [_number(word) for word in numbers.split(",")]
            # Pass a single value as a number, not as a list: the constant later gets the shape of the input.
            read_one = plain_constants({name: values if len(values) > 1 else values[0]})
        except ValueError as error:
            read_one, cause = {}, f"{error}."
        if not equals or not name or not read_one or name in read:
            raise OptionError(
                f'--constant "{text:.200}" is not of the form INPUT=NUMBER or INPUT=NUMBER,NUMBER,..., or '
                "repeats an input.",
                cause=cause,
                fix="For example --constant sr=16000, or --constant size=480,640.",
            )
        read.update(read_one)
    return read


def _number(word: str) -> float:
    # Convert true and false, for Boolean inputs, to 1 and 0.
    known = {"true": 1, "false": 0}.get(word.strip().lower())
    if known is not None:
        return known
    try:
        return int(word)
    except ValueError:
        return float(word)


# Largest size of a dimension. Buckets of a session have the same limit.
MOST_SIZE = 2**31 - 1
# Maximum number of combinations of sizes. Each combination is compiled as a separate model.
MOST_BUCKETS = 256


def read_bucket_sizes(texts: Iterable[str]) -> dict[str, list[int]]:
    """Read `seq=16,32` and `batch=1`: the sizes of each dimension, in rising order."""
    sizes: dict[str, list[int]] = {}
    for text in texts:
        name, equals, given = text.rpartition("=")
        words = given.split(",")
        if not equals or not name or name in sizes or not all(_is_size(word) for word in words):
            raise OptionError(
                f'--bucket "{text:.200}" is not of the form NAME=SIZE,SIZE,... with sizes from 1 to {MOST_SIZE}, '
                "or repeats a dimension.",
                fix="Give a free dimension and its sizes: --bucket seq=16,32,64.",
            )
        # Remove duplicates: a repeated size would be compiled twice and written to the same file.
        sizes[name] = sorted({int(word) for word in words})
    return sizes


def read_buckets(texts: Iterable[str]) -> list[dict[str, int]]:
    """Return every combination of the given sizes, the smallest first; an empty list without sizes."""
    sizes = read_bucket_sizes(texts)
    if math.prod(len(one) for one in sizes.values()) > MOST_BUCKETS:
        raise OptionError(
            f"These buckets make more than {MOST_BUCKETS} models.",
            fix="Give fewer sizes, for example powers of two, which need little padding.",
        )
    return [dict(zip(sizes, one, strict=True)) for one in itertools.product(*sizes.values())] if sizes else []


def _is_size(word: str) -> bool:
    # Compare the length first, because `int` refuses thousands of digits.
    return word.isascii() and word.isdigit() and len(word) <= len(str(MOST_SIZE)) and 1 <= int(word) <= MOST_SIZE


def read_chip(text: str) -> int:
    """Read `--soc-model`: return a chip's number, from its number, its part name or its product name."""
    from qnnbridge_host.model.chips import chip_named, known_chips_text

    known = chip_named(text.strip())
    if known is not None:
        return known.number
    # Accept every number, because the chip may be newer than the table.
    if _is_size(text.strip()):
        return int(text)
    raise OptionError(
        f'--soc-model "{text:.200}" is neither a number nor the name of a chip.',
        fix=f'Give one of {known_chips_text()}, or a product name such as "X Elite".',
    )


def read_timeout(seconds: float | None) -> float | None:
    """Return the value of `--timeout`. Raise `OptionError` unless it is ``None`` or above 0."""
    # This comparison also rejects NaN.
    if seconds is not None and not seconds > 0:
        raise OptionError(
            f"--timeout {seconds:g} is not above 0.",
            fix="Give a number of seconds above 0, or omit --timeout for no limit.",
        )
    return seconds


def refuse_together(what: str, given: Mapping[str, bool]) -> None:
    """Raise `OptionError` for the first given option that cannot be combined with `what`."""
    option = next((name for name, is_given in given.items() if is_given), None)
    if option is not None:
        raise OptionError(f"{what} does not go with {option}.", fix=f"Omit {option}.")


def read_size(option: str, text: str, least: int = 1) -> int:
    """Read a size in bytes, such as 500M. Raise `OptionError`."""
    from qnnbridge_protocol.settings import parse_size

    size = parse_size(text)
    if size is None or size < least:
        raise OptionError(f'{option} "{text:.40}" is not a size.', fix="Give bytes, or a size such as 500M or 2G.")
    return size


def read_provider_options(texts: Iterable[str]) -> dict[str, str]:
    """Parse provider options such as `soc_model=60`. The host checks their keys and values."""
    options: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise OptionError(
                f'--provider-option "{text}" is not of the form KEY=VALUE.',
                fix="For example --provider-option htp_performance_mode=burst.",
            )
        _give(options, key, value)
    return options


def with_chip(options: Mapping[str, str], soc_model: str | None) -> dict[str, str]:
    """Return the provider options, including the one that `--soc-model` sets."""
    given = dict(options)
    if soc_model is not None:
        _give(given, "soc_model", soc_model)
    return given


def _give(options: dict[str, str], key: str, value: str) -> None:
    if options.setdefault(key, value) != value:
        raise OptionError(f'"{key}" is given two values (--provider-option).', fix="Give it once.")


# The Python call that session errors suggest for a free dimension. An error about several dimensions contains one
# call for each.
_OVERRIDE = re.compile(r"add_free_dimension_override_by_name\((['\"])(.*?)\1, SIZE\)(,(?= add_free))?")
_PLAIN_NAME = re.compile(r"[\w.:-]+")
# Advice of session errors about a dimension without a name. Sessions accept sizes only by dimension name.
_EXPORT = re.compile(r"Export the model with fixed shapes(?: \(those .*?=SIZE\"?\))?")
_TIMEOUT = re.compile(r"(?<!-)\btimeout=(?!\w)")
_ON_CPU = re.compile(r"\b(?:([Cc])reate the session with|allow) fallback=(['\"])cpu\2")
_REWRITTEN = re.compile(
    r"\b([Cc])reate the session with fix=(?:True|\{'constants': \{[^}]*\}\}), or (?:to )?run(?: once)?:"
)


def session_options(dimensions: Dimensions) -> SessionOptions | None:
    """Return session options that fix the named dimensions; ``None`` if there are none."""
    if not dimensions.by_name:
        return None
    from qnnbridge import SessionOptions

    options = SessionOptions()
    for name, size in dimensions.by_name.items():
        options.add_free_dimension_override_by_name(name, size)
    return options


def read_models(models: Iterable[Path], dimensions: Dimensions) -> list[ModelScan]:
    """Scan models. For a prepared folder, scan its uncompiled model; skip other model packages.

    Raises:
        BridgeError: a model or a folder cannot be read.
        OptionError: a `--dim` belongs to none of the models.
    """
    from qnnbridge_host.model.prepared import read_folder
    from qnnbridge_host.model.scan import scan_model

    scans: list[ModelScan] = []
    chosen: set[str] = set()
    for model in models:
        if model.is_dir():
            prepared = read_folder(os.fspath(model))
            if prepared is None:  # a model package from another tool, which only the host can read
                continue
            chosen.update(name for variant in prepared.variants for name in variant.sizes)
            scans.append(scan_model(model / prepared.model, count_nodes=False))
        else:
            scans.append(scan_model(model, count_nodes=False))
    # Skip sizes that select a compiled model of a prepared folder: these models have no free dimensions.
    by_name = {name: size for name, size in dimensions.by_name.items() if name not in chosen}
    if scans:
        refuse_unknown(scans, Dimensions(by_name, dict(dimensions.by_axis)))
    return scans


def refuse_unknown(scans: Sequence[ModelScan], dimensions: Dimensions) -> None:
    """Raise `OptionError` for a `--dim` that no input of these models has, which ONNX Runtime would ignore."""
    if any(scan.format == "ort" for scan in scans):  # the inputs of an .ort file cannot be read here
        return
    refuse_unknown_of([node for scan in scans for node in scan.inputs], dimensions)


def refuse_unknown_of(inputs: Iterable[DeclaredInput], dimensions: Dimensions) -> None:
    """Raise `OptionError` for a `--dim` that does not belong to any of these inputs."""
    refuse_unknown_names({(one.input, one.axis): one.name for one in free_axes(inputs)}, dimensions)


def free_axes(inputs: Iterable[DeclaredInput]) -> list[FreeAxis]:
    """List the dimensions without a size."""
    return [
        FreeAxis(node.name, axis, size if isinstance(size, str) and size else None)
        for node in inputs
        for axis, size in enumerate(node.shape or ())
        if not isinstance(size, int) or size < 0
    ]


def in_options(refused: PlacementRefused, inputs: Iterable[DeclaredInput] = ()) -> None:
    """Replace the Python calls in the error's fix by options of the command line.

    inputs: the model's inputs, if the command accepts sizes by input and axis.
    """
    fix = refused.fix or ""
    free = free_axes(inputs)
    if free and _EXPORT.match(fix):
        by_option = f"Fix the dimensions: {options_text(free)}, or export the model with fixed shapes"
        fix = _EXPORT.sub(lambda _: by_option, fix, count=1)
    refused.fix = fix or None
    use_options_in_fix(refused, ("--dim", "--fallback"))


def use_options_in_fix(error: BridgeError, options: Container[str]) -> None:
    """Replace the Python calls in the error's fix by options of the command.

    options: the options of the command. Calls for which the command has no option are kept.
    """
    if error.fix is None:
        return
    fix = _REWRITTEN.sub(lambda call: "Run:" if call[1] == "C" else "run:", error.fix)
    if "--fallback" in options:
        fix = _ON_CPU.sub(lambda call: "Add --fallback cpu" if call[1] == "C" else "add --fallback cpu", fix)
    if "--timeout" in options:
        fix = _TIMEOUT.sub("--timeout", fix).replace("(--timeout, --timeout)", "(--timeout)")
        fix = fix.replace("the time limit, or start the host beforehand with Host.start()", "--timeout")
    if "--dim" in options:
        fix = _OVERRIDE.sub(lambda call: _option(call[2]), fix)
        fix = fix.replace(" in the session options: --dim", ": --dim")
    error.fix = fix


def _option(name: str) -> str:
    return f"--dim {name}=SIZE" if _PLAIN_NAME.fullmatch(name) else f'--dim "{name}=SIZE"'
