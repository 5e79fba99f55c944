"""The work of `qnnbridge run`: load inputs, create and run the session, summarise and write the outputs, and
report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from qnnbridge_host.graph.files import existing_model
from qnnbridge_os.outputs import OutputFile, check_folder
from qnnbridge_protocol.errors import (
    EPFail,
    Fail,
    HostCrashed,
    HostHung,
    ModelQuarantined,
    PlacementRefused,
    RuntimeException,
)
from qnnbridge_protocol.model_records import NumbersReport, is_compared
from qnnbridge_protocol.tensors import Sparse, Typed, ml_dtype
from qnnbridge_tools import arguments, feeds, output, reporting
from qnnbridge_tools.sessions import CPU, QNN, one_line

if TYPE_CHECKING:
    from qnnbridge import Host, HostInfo, InferenceSession
    from qnnbridge_protocol.specs import Placement
    from qnnbridge_tools.options import RunRequest


@dataclasses.dataclass(frozen=True, slots=True)
class TensorSummary:
    """A summary of an output. ``min``, ``max`` and ``mean`` are of the finite elements, or None."""

    dtype: str
    shape: tuple[int, ...] | None
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    not_finite: int = 0

    def numbers_text(self) -> tuple[str, str, str]:
        texts = ["-" if n is None else f"{n:.6g}" for n in (self.min, self.max, self.mean)]
        if self.not_finite:
            texts[2] += f" ({self.not_finite} NaN or infinite)"
        return texts[0], texts[1], texts[2]


def summarize(value: Any) -> TensorSummary:
    """Summarise any output of a session: arrays, types unknown to numpy, sequences, maps, None."""
    if isinstance(value, np.ndarray):
        return _of_array(value, str(value.dtype) if value.dtype != object else "string")
    if isinstance(value, (list, tuple)):
        return TensorSummary(f"sequence of {len(value)}", None)
    if isinstance(value, dict):
        return TensorSummary(f"map of {len(value)}", None)
    if value is None:
        return TensorSummary("empty optional", None)
    if isinstance(value, Typed):
        kind = value.element_type.text
        if ml_dtype(value.element_type) is None:  # without ml_dtypes the values are only bit patterns
            return TensorSummary(kind, value.shape)
        return _of_array(value.numpy(), kind)
    if isinstance(value, Sparse):
        return TensorSummary(f"sparse {value.format}", tuple(value.dense_shape))
    return TensorSummary(type(value).__name__, None)


def _of_array(array: npt.NDArray[Any], kind: str) -> TensorSummary:
    # Strings, dates and Python objects have no mean.
    if array.size == 0 or array.dtype.kind in "OUSMm":
        return TensorSummary(kind, array.shape)
    if array.dtype.kind == "c":
        array = np.abs(array)
    elif array.dtype.kind not in "biu":
        array = array.astype(np.float64)  # float64 also holds types of ml_dtypes; sums in float16 would overflow
    finite = array if array.dtype.kind in "biu" else array[np.isfinite(array)]
    not_finite = int(array.size - finite.size)
    if finite.size == 0:
        return TensorSummary(kind, array.shape, not_finite=not_finite)
    return TensorSummary(
        kind,
        array.shape,
        float(finite.min()),
        float(finite.max()),
        float(finite.mean(dtype=np.float64)),
        not_finite,
    )


MAX_NAME_LENGTH = 80
# Windows treats these names as devices, with any suffix: writing to nul.npy discards the data.
_WINDOWS_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


def write(values: Mapping[str, Any], folder: Path, *, overwrite: bool = True) -> dict[str, Path]:
    """Write every value and return the file of each.

    Tensors are written as .npy, sparse tensors as .npz, sequences and maps as .json.
    """
    stems = safe_names(list(values))
    written: dict[str, Path] = {}
    for (name, value), stem in zip(values.items(), stems, strict=True):
        path = folder / (stem + _suffix(value))
        with OutputFile(path, overwrite=overwrite).opened() as file:
            _write_one(value, file)
        written[name] = path
    return written


def safe_names(names: Sequence[str]) -> list[str]:
    """Return a file stem for each name. The stems differ even where upper and lower case are not distinguished."""
    stems: list[str] = []
    # Compare in lower case, because Windows and macOS do not distinguish case.
    taken: set[str] = set()
    for name in names:
        # Windows drops dots at the end of a name, and on POSIX a dot at the beginning hides the file.
        stem = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:MAX_NAME_LENGTH].strip(".") or "output"
        if _WINDOWS_DEVICES.match(stem):
            stem = "_" + stem
        unique, number = stem, 1
        while unique.lower() in taken:
            number += 1
            unique = f"{stem}-{number}"
        taken.add(unique.lower())
        stems.append(unique)
    return stems


def _suffix(value: Any) -> str:
    if isinstance(value, (np.ndarray, Typed)):
        return ".npy"
    return ".npz" if isinstance(value, Sparse) else ".json"


def _write_one(value: Any, file: BinaryIO) -> None:
    if isinstance(value, np.ndarray):
        # An object array can only be pickled; fixed-width text can be read by every program.
        array = value.astype(str) if value.dtype == object else value
        np.save(file, array, allow_pickle=False)
    elif isinstance(value, Typed):
        np.save(file, value.data, allow_pickle=False)  # writes raw bits, because .npy has no name for the type
    elif isinstance(value, Sparse):
        arrays: dict[str, Any] = {f"indices_{number}": array for number, array in enumerate(value.indices)}
        np.savez(file, values=value.values, dense_shape=np.asarray(value.dense_shape, np.int64), **arrays)
    else:
        file.write(json.dumps(output.jsonable(_tree(value)), indent=2).encode("ascii"))


def _tree(value: Any) -> Any:
    """Return sequences as lists, maps as lists of pairs (JSON's keys are only text), and arrays as nested lists."""
    if isinstance(value, (list, tuple)):
        return [_tree(item) for item in value]
    if isinstance(value, Mapping):
        return [[_tree(key), _tree(item)] for key, item in value.items()]
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return value


@dataclasses.dataclass(frozen=True, slots=True)
class NamedInput:
    feed: feeds.Feed
    type: str


@dataclasses.dataclass(frozen=True, slots=True)
class RunResult:
    """The result of `qnnbridge run`.

    Durations are in seconds.

    Args:
        ready_s: seconds from the start until the host has loaded ONNX Runtime.
        runs_s: seconds of each run, in order.
        fixed: the rewrites of the session's copy of the model.
        numbers: whether the first run agrees with the CPU.
        verify_command: command that finds the wrong node if the first run does not agree.
        moved_because: why QNN failed and the CPU did the work instead; empty if QNN did not fail.
    """

    inputs: list[NamedInput]
    outputs: dict[str, Any]
    output_types: dict[str, str]
    files: dict[str, Path]
    placement: Placement
    used_providers: list[str]
    host: HostInfo
    ready_s: float
    create_s: float
    runs_s: list[float]
    fixed: tuple[str, ...] = ()
    moved_because: str = ""
    numbers: NumbersReport = dataclasses.field(default_factory=lambda: NumbersReport("off"))
    verify_command: str = ""

    @property
    def later_median_s(self) -> float | None:
        """Median of the runs after the first, which includes one-time work."""
        return statistics.median(self.runs_s[1:]) if len(self.runs_s) > 1 else None

    @property
    def later_p95_s(self) -> float | None:
        later = sorted(self.runs_s[1:])
        # Use the nearest rank, so that the result is a measured value and not an interpolation.
        return later[math.ceil(0.95 * len(later)) - 1] if later else None


# Errors of QNN, and errors that QNN causes in the host. Wrong inputs and invalid models are not a reason to
# move to the CPU.
_OF_QNN = (EPFail, Fail, HostCrashed, HostHung, ModelQuarantined, RuntimeException)


def perform(request: RunRequest) -> RunResult:
    """Execute the requested run. All errors that can be found without a host are raised before a host is
    started.
    """
    existing_model(request.model)
    # Read files first, so that a typing error in a path is reported before a host is started.
    loaded = feeds.load(*arguments.read_one_set([*request.inputs, *filter(None, [request.archive])]))

    # Scan the model first, so that a file that is not a model is refused before a host is started.
    scans = arguments.read_models([request.model], request.sizes.dims)
    # Check the folder before the host is started, so that a run does not fail at its end.
    if request.output is not None:
        check_folder(request.output, request.output)
        if not request.overwrite:
            _refuse_existing([node.name for scan in scans for node in scan.outputs], request.output)
    try:
        result = _performed(request, loaded)
        # The session was created but no node ran on QNN: also report this as a move to the CPU.
        moved = request.fallback == "cpu" and request.provider != "cpu" and not result.placement.qnn_nodes
        return dataclasses.replace(result, moved_because=result.placement.cause or "") if moved else result
    except PlacementRefused as refused:
        arguments.in_options(refused, [node for scan in scans for node in scan.inputs])
        raise
    except _OF_QNN as error:
        if request.fallback != "cpu" or request.provider == "cpu":
            raise
        # Options of QNN have no meaning for the CPU.
        on_cpu = dataclasses.replace(request, provider="cpu", provider_options={}, soc_model=None)
        return dataclasses.replace(_performed(on_cpu, loaded), moved_because=one_line(error))


@contextlib.contextmanager
def started_host(python: str | None) -> Iterator[tuple[Host, float]]:
    """Yield a host that has loaded ONNX Runtime, and the start-up time in seconds. Print warnings as plain text."""
    from qnnbridge import CpuFallbackWarning, Host

    def show(message: Warning | str, *_: Any) -> None:
        print(output.visible(message), file=sys.stderr)

    begun = time.perf_counter()
    with warnings.catch_warnings(), Host(python=python) as host:
        warnings.showwarning = show  # type: ignore[assignment] # users need no source line of qnnbridge
        warnings.simplefilter("ignore", CpuFallbackWarning)  # the report contains the placement
        _ = host.info  # waits until ONNX Runtime is loaded, which would otherwise count as creating the session
        yield host, time.perf_counter() - begun


def _performed(request: RunRequest, loaded: Sequence[feeds.Feed]) -> RunResult:
    from qnnbridge import InferenceSession, NumbersWarning

    with started_host(request.host_python) as (host, ready_s):
        warnings.simplefilter("ignore", NumbersWarning)  # the report contains the comparison
        begun = time.perf_counter()
        with InferenceSession(
            str(request.model),
            arguments.session_options(request.sizes.dims),
            providers=[CPU if request.provider == "cpu" else QNN],
            provider_options=[request.session_options],
            host=host,
            timeout=request.timeout,
            fallback=request.fallback,
        ) as session:
            create_s = time.perf_counter() - begun
            declared = list(session.get_inputs())
            # Initializers that can be overridden are fed by name, as inputs are.
            types = {node.name: node.type for node in [*declared, *session.get_overridable_initializers()]}
            given = feeds.complete(
                declared, loaded, request.sizes.dims, seed=request.seed if request.random else None
            )
            values = {feed.name: feed.value for feed in given}
            output_nodes = list(session.get_outputs())
            runs_s: list[float] = []
            first: list[Any] | None = None
            for _ in range(request.repeat):
                begun = time.perf_counter()
                # `run_values` keeps the element types that numpy does not have.
                results = session.run_values(None, values)
                runs_s.append(time.perf_counter() - begun)
                # The results of the first run are shown, so that they are the same with any --repeat.
                first = results if first is None else first
            outputs = dict(zip((node.name for node in output_nodes), first or [], strict=True))
            return RunResult(
                inputs=[NamedInput(feed, types.get(feed.name, "")) for feed in given],
                outputs=outputs,
                output_types={node.name: node.type for node in output_nodes},
                files={} if request.output is None else write(outputs, request.output, overwrite=request.overwrite),
                placement=session.placement,
                used_providers=list(session.get_providers()),
                host=host.info,
                ready_s=ready_s,
                create_s=create_s,
                runs_s=runs_s,
                fixed=session.fixed,
                numbers=_settled(session),
                verify_command=session._remote.recipe.command("verify"),
            )


def _settled(session: InferenceSession) -> NumbersReport:
    """Return the result of the first run's comparison with the CPU, after this comparison has ended."""
    # This loop ends, because the host ends a comparison after its time limit.
    while is_compared(report := session.verified):
        time.sleep(0.02)
    return report


def _refuse_existing(names: Sequence[str], folder: Path) -> None:
    """Raise `OptionError` if a file for an output of the model exists already."""
    for stem in safe_names(names):
        for suffix in (".npy", ".npz", ".json"):
            OutputFile(folder / (stem + suffix), overwrite=False)


_MOVED = "to the CPU, as --fallback cpu allows, because QNN failed"


def print_result(request: RunRequest, result: RunResult) -> None:
    print("Inputs")
    output.print_table(
        ["name", "type", "shape", "source"],
        [
            [given.feed.name, given.type, _shape(summarize(given.feed.value)), given.feed.source]
            for given in result.inputs
        ],
    )
    print()
    print("Outputs")
    headers = ["name", "type", "shape", "min", "max", "mean"]
    rows: list[list[str]] = []
    for name, value in result.outputs.items():
        summary = summarize(value)
        rows.append([name, summary.dtype, _shape(summary), *summary.numbers_text()])
    if result.files:
        headers.append("file")
        rows = [[*row, str(result.files[row[0]])] for row in rows]
    output.print_table(headers, rows)
    print()
    output.print_pairs(
        "Where it ran",
        [
            *([("moved", f"{_MOVED}: {result.moved_because}")] if result.moved_because else []),
            *(("rewritten", line) for line in result.fixed),
            *numbers_pairs(result),
            *reporting.placement_pairs(result.placement),
            *reporting.sides_pairs(result.host),
        ],
    )
    print()
    output.print_pairs("How long it took", _time_pairs(result))


def numbers_pairs(result: RunResult) -> list[tuple[str, str]]:
    report = result.numbers
    pairs = [("numbers", f"{report.verdict}: {report.reason}" if report.reason else report.verdict)]
    if report.state == "differs":
        pairs += [("", str(one)) for one in report.outputs[:3]]
        pairs += [("because", report.cause)] if report.cause else []
        pairs += [("find the node", result.verify_command)] if result.verify_command else []
    elif report.worst is not None:
        pairs.append(("", str(report.worst)))
    return pairs


def document(request: RunRequest, result: RunResult) -> dict[str, Any]:
    return {
        "model": str(request.model),
        "inputs": [
            {
                "name": given.feed.name,
                "type": given.type,
                "source": given.feed.source,
                **dataclasses.asdict(summarize(given.feed.value)),
            }
            for given in result.inputs
        ],
        "outputs": [
            {
                "name": name,
                "type": result.output_types[name],
                "file": str(result.files[name]) if name in result.files else None,
                **dataclasses.asdict(summarize(value)),
            }
            for name, value in result.outputs.items()
        ],
        "providers": result.used_providers,
        "placement": result.placement.to_wire(),
        "fixed": list(result.fixed),
        "moved_because": result.moved_because or None,
        "numbers": result.numbers.to_wire(),
        "host": reporting.host_document(result.host),
        "application": reporting.application_document(),
        "times": {
            "host_startup_seconds": result.host.startup_seconds,
            "host_ready_seconds": result.ready_s,
            "create_seconds": result.create_s,
            "runs": len(result.runs_s),
            "first_run_seconds": result.runs_s[0],
            "later_median_seconds": result.later_median_s,
            "later_p95_seconds": result.later_p95_s,
        },
    }


def _shape(summary: TensorSummary) -> str:
    return "-" if summary.shape is None else output.shape_text(summary.shape)


def _time_pairs(result: RunResult) -> list[tuple[str, str]]:
    pairs = [
        ("host start-up", reporting.startup_text(result.host, result.ready_s)),
        ("create", output.seconds(result.create_s)),
        ("first run", output.seconds(result.runs_s[0])),
    ]
    if result.later_median_s is not None and result.later_p95_s is not None:
        median, p95 = output.seconds(result.later_median_s), output.seconds(result.later_p95_s)
        pairs.append((f"{len(result.runs_s) - 1} more", f"median {median}, 95th percentile {p95}"))
    return pairs
