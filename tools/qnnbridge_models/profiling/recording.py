"""Run a model with ONNX Runtime's and QNN's profiles enabled, and read the profiles.

The files are in a temporary folder that is always removed. They are read after the host has ended, because QNN
writes its file until then; ONNX Runtime's file is complete when profiling ends. Calls run one at a time in a
separate host, so that no other session affects the measurement.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.cache.files import work_folder
from qnnbridge_host.graph.files import existing_model
from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_host.model.op_trace import TRACE_FILE
from qnnbridge_host.model.paths import native_path
from qnnbridge_host.model.scan import scan_model
from qnnbridge_models.command_options import ProfileRequest
from qnnbridge_models.progress import OnProgress
from qnnbridge_protocol.errors import BridgeError, OptionError
from qnnbridge_protocol.specs import QNN, Placement
from qnnbridge_tools import arguments, feeds
from qnnbridge_tools.run_once import started_host

if TYPE_CHECKING:
    from qnnbridge import HostInfo, InferenceSession, SessionOptions

QNN_FILE: Final = "qnn.csv"
ORT_PREFIX: Final = "ort"
# Seed of generated inputs, constant so that two profiles can be compared.
SEED: Final = 0
# Provider options that this command sets itself. The provider rejects `profiling_level` without
# `profiling_file_path`.
_OWN_OPTIONS: Final = (
    "profiling_level",
    "profiling_file_path",
    "enable_framework_op_trace",
    "framework_op_trace_dir",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """All measurements of a profiled model.

    Args:
        model: path of the model.
        level: level of detail of QNN's profile.
        compiled: true if the model is compiled.
        inputs: (name, type, source) of each input.
        bytes_to_host, bytes_from_host: size of all inputs and of all outputs of one run.
        placement: where the nodes run.
        host: information about the host.
        ready_s: time that the host took to start.
        create_s: time to create the session.
        calls_s: duration of each call, measured in the application.
        session: ONNX Runtime's profile.
        calls: QNN's calls, from its profile.
        trace: QNN's operators, by graph.
    """

    model: str
    level: str
    compiled: bool
    inputs: tuple[tuple[str, str, str], ...]
    bytes_to_host: int
    bytes_from_host: int
    placement: Placement
    host: HostInfo
    ready_s: float
    create_s: float
    calls_s: tuple[float, ...]
    session: OrtProfile
    calls: tuple[QnnCall, ...]
    trace: OpTrace


def record(request: ProfileRequest, on_progress: OnProgress) -> Recording:
    """Run a model with profiling. Do all checks that need no host before starting a host.

    Raises:
        NoSuchFile: the model does not exist.
        OptionError: an option or an input is wrong.
        BridgeError: a profile is missing or unusable.
    """
    existing_model(request.model)
    # Refuse these options, because the command's values would silently overwrite the user's.
    if own := sorted(set(request.provider_options) & set(_OWN_OPTIONS)):
        raise OptionError(
            f"The provider option {own[0]} cannot be given, because this command sets it.",
            fix="Omit it; --level selects the profiling level.",
        )
    loaded = feeds.load(*arguments.read_one_set(request.inputs))

    scan = scan_model(request.model, count_nodes=False)
    arguments.refuse_unknown((scan,), request.sizes.dims)
    # Use a new folder, because QNN appends to an existing file.
    with work_folder("profile") as folder:
        return _recorded(request, loaded, Path(_for_qnn(folder)), scan.is_compiled, on_progress)


def _recorded(
    request: ProfileRequest, loaded: list[feeds.Feed], folder: Path, compiled: bool, on_progress: OnProgress
) -> Recording:
    from qnnbridge import InferenceSession

    with started_host(request.host_python) as (host, ready_s):
        info = host.info
        on_progress("Loading" if compiled else "Loading and compiling", 0, 0)
        begun = time.perf_counter()
        with InferenceSession(
            str(request.model),
            _session_options(request.sizes.dims, folder),
            providers=[QNN],
            provider_options=[
                {
                    **arguments.with_chip(request.provider_options, request.soc_model),
                    # With a profiling level, the host compiles the model instead of using its cache, so QNN's file
                    # includes the compilation.
                    "profiling_level": request.level,
                    "profiling_file_path": str(folder / QNN_FILE),
                    "enable_framework_op_trace": "1",
                    "framework_op_trace_dir": str(folder),
                }
            ],
            host=host,
            timeout=request.timeout,
            # Allow nodes on the CPU, because they are part of the profile.
            fallback="cpu",
            # A run that is repeated after a crash would appear twice in the profile.
            retry=0,
            # The profile must contain the node names of the original model.
            fix=False,
            # A comparison with the CPU would add to the time of the measured runs.
            verify=False,
        ) as session:
            create_s = time.perf_counter() - begun
            given = feeds.complete(session.get_inputs(), loaded, request.sizes.dims, seed=SEED)
            calls_s, results = _timed_runs(session, given, request.runs, folder / QNN_FILE, on_progress)
            session_file = session.end_profiling()
            placement = session.placement
            types = {node.name: node.type for node in session.get_inputs()}
    # If `end_profiling` returns no file name, use the expected name: `read_ort` raises an error if that file is
    # missing.
    profile = read_ort(Path(session_file) if session_file else folder / f"{ORT_PREFIX}.json")
    if len(profile.runs) != len(calls_s):
        raise BridgeError(
            f"ONNX Runtime's profile has {len(profile.runs)} runs instead of {len(calls_s)}.",
            cause="The session was created again during the runs, or ONNX Runtime stopped recording at its "
            "maximum number of events.",
            fix="Run the command again, with fewer --runs for a large model.",
        )
    on_qnn = any(node.provider == QNN for run in profile.runs for node in run.nodes)
    return Recording(
        model=str(request.model),
        level=request.level,
        compiled=compiled,
        inputs=tuple((feed.name, types.get(feed.name, ""), feed.source) for feed in given),
        bytes_to_host=sum(_size(feed.value) for feed in given),
        bytes_from_host=sum(map(_size, results)),
        placement=placement,
        host=info,
        ready_s=ready_s,
        create_s=create_s,
        calls_s=tuple(calls_s),
        session=profile,
        # If all nodes run on the CPU, QNN writes no file, which is not an error.
        calls=read_qnn(folder / QNN_FILE) if on_qnn else (),
        trace=read_op_trace(folder / OP_TRACE_FILE),
    )


def _timed_runs(
    session: InferenceSession, given: Sequence[feeds.Feed], runs: int, growing: Path, on_progress: OnProgress
) -> tuple[list[float], list[Any]]:
    """Return the duration of each call, and the outputs of the last call.

    Raise `BridgeError` once QNN's file is too large to read.
    """
    values = {feed.name: feed.value for feed in given}
    calls_s: list[float] = []
    results: list[Any] = []
    for number in range(runs):
        on_progress("Running", number, runs)
        begun = time.perf_counter()
        results = session.run_values(None, values)
        calls_s.append(time.perf_counter() - begun)
        # Stop if QNN's file has become too large to read, because the profile would be useless.
        if growing.exists():
            check_size(growing.stat().st_size, "QNN")
    on_progress("Running", runs, runs)
    return calls_s, results


def _session_options(dimensions: Dimensions, folder: Path) -> SessionOptions:
    from qnnbridge import SessionOptions

    options = arguments.session_options(dimensions) or SessionOptions()
    options.enable_profiling = True
    # ONNX Runtime appends the time and ".json".
    options.profile_file_prefix = str(folder / ORT_PREFIX)
    return options


def _for_qnn(folder: str) -> str:
    """Return a path of the folder that QNN can open: on Windows, the short name if the path is not ASCII."""
    try:
        return native_path(folder)
    except OSError as error:
        raise BridgeError(
            "QNN cannot write its profile to the temporary folder.",
            cause=f"{error}.",
            fix="Set TEMP to a folder whose path contains only ASCII characters, and run the command again.",
        ) from None


def _size(value: Any) -> int:
    """Return the size of a tensor in bytes; 0 for a sequence or map, whose elements are not visited."""
    return int(getattr(value, "nbytes", 0) or getattr(getattr(value, "data", None), "nbytes", 0))


# --- the files of a profiled run: ONNX Runtime's profile, QNN's profile, and QNN's trace ----------------------

# Maximum size of a profile: a larger profile contains thousands of runs, and a tenth as many runs would give the
# same medians.
MAX_PROFILE_BYTES: Final = 256 << 20

# File name of QNN's trace, defined by the provider.
OP_TRACE_FILE: Final = TRACE_FILE
MAX_TRACE_BYTES: Final = 64 << 20


def check(path: Path, whose: str) -> None:
    """Raise `BridgeError` if the file is missing or too large.

    Args:
        path: the file.
        whose: name of the program that writes the file: "QNN" or "ONNX Runtime".
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise BridgeError(
            f"{whose} wrote no profile.",
            cause=f"The expected file {path.name} does not exist.",
            fix="Check whether the disk is full. If it is not, try --level basic.",
        ) from None
    check_size(size, whose)


def check_size(size: int, whose: str) -> None:
    if size > MAX_PROFILE_BYTES:
        raise BridgeError(
            f"The profile of {whose} is too large: {size >> 20} MiB; the limit is {MAX_PROFILE_BYTES >> 20} MiB.",
            cause="The profile contains one entry for each operator in each run.",
            fix="Profile fewer runs: --runs 10. Or use --level basic, which records no operators.",
        )


def unusable(path: Path, whose: str, why: str) -> BridgeError:
    return BridgeError(
        f"The profile of {whose} cannot be read: {why}.",
        cause=f"{path.name} is incomplete, or this version of {whose} uses another format.",
        fix="Run the command again. If the disk is full, free some space first.",
        details={"file": path.name},
    )


# QNN's operators with their types, by graph; graphs and operators are in the order of compilation.
OpTrace = Mapping[str, Mapping[str, str]]


def read_op_trace(path: Path) -> OpTrace:
    """Return QNN's operators by graph; empty if there is no trace.

    The provider (from 2.4 on) writes the trace while it compiles a model, so there is none for a compiled model.
    """
    try:
        if path.stat().st_size > MAX_TRACE_BYTES:
            return {}
        document = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        return {
            str(graph["graph_name"]): {
                str(mapping["dst_name"]): str(mapping.get("dst_qnn_op_type", ""))
                for mapping in graph["op_mappings"]
            }
            for graph in document["subgraph_traces"]
        }
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        # A missing trace is not an error: the report then shows times without the node names of the model.
        return {}


# ONNX Runtime writes one event per line, so the file is read line by line. The events of a run precede the event
# `model_run`, which ends the run. A node that runs within another node (the body of If, Loop, Scan) is nested; the
# time of the outer node includes it.

_ORT: Final = "ONNX Runtime"
_NODE_SUFFIX: Final = "_kernel_time"


@dataclasses.dataclass(frozen=True, slots=True)
class NodeRun:
    """One execution of one node. `bytes_in` and `bytes_out` only count non-constant tensors."""

    name: str
    op: str
    provider: str
    start_us: float
    time_us: float
    bytes_in: int
    bytes_out: int
    nested: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class OrtRun:
    """One run of the session.

    Args:
        time_us: duration in microseconds.
        nodes: executions of nodes, sorted by start time.
    """

    time_us: float
    nodes: tuple[NodeRun, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class OrtProfile:
    parse_us: float
    initialize_us: float
    runs: tuple[OrtRun, ...]


def read_ort(path: Path) -> OrtProfile:
    """Read ONNX Runtime's profile. Raise `BridgeError` for a missing, truncated or unknown file."""
    check(path, _ORT)
    parse_us = initialize_us = 0.0
    runs: list[OrtRun] = []
    nodes: list[NodeRun] = []
    for event in _events(path):
        category, name = event.get("cat"), str(event.get("name", ""))
        if category == "Node" and name.endswith(_NODE_SUFFIX):
            nodes.append(_node(event, name.removesuffix(_NODE_SUFFIX)))
        elif category != "Session":
            continue
        # The event's name has a suffix for the source of the model, for example model_loading_uri for a file.
        elif name.startswith("model_loading"):
            parse_us += float(event["dur"])
        elif name == "session_initialization":
            initialize_us += float(event["dur"])
        elif name == "model_run":
            runs.append(OrtRun(float(event["dur"]), _nested(nodes)))
            nodes = []
    return OrtProfile(parse_us, initialize_us, tuple(runs))


def _events(path: Path) -> Iterator[dict[str, Any]]:
    ended = False
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, 1):
            # The file is a JSON list with one event per line. Parsing the whole list would take several times its
            # size in memory.
            text = line.strip().removeprefix("[" if number == 1 else "")
            if text.endswith("]"):
                ended, text = True, text[:-1]
            if not (text := text.strip().rstrip(",")):
                continue
            try:
                event = json.loads(text)
                # Raise an error for an event without a duration: every event has one, so the file is damaged.
                float(event["dur"])
            except (ValueError, TypeError, KeyError, RecursionError):
                raise unusable(path, _ORT, f"line {number} is not an event") from None
            yield event
    if not ended:
        raise unusable(path, _ORT, "its end is missing")


def _node(event: dict[str, Any], name: str) -> NodeRun:
    args = event.get("args")
    known: dict[str, Any] = args if isinstance(args, dict) else {}
    return NodeRun(
        name=name,
        op=str(known.get("op_name", "")),
        provider=str(known.get("provider", "")),
        start_us=float(event.get("ts", 0)),
        time_us=float(event["dur"]),
        bytes_in=_count(known.get("activation_size")),
        bytes_out=_count(known.get("output_size")),
    )


def _count(text: object) -> int:
    # ONNX Runtime's profile contains sizes as strings.
    return int(text) if isinstance(text, (str, int)) and str(text).isdecimal() else 0


def _nested(nodes: list[NodeRun]) -> tuple[NodeRun, ...]:
    """Return the nodes sorted by start time, with nested nodes marked."""
    ordered = sorted(nodes, key=lambda node: (node.start_us, -node.time_us))
    marked: list[NodeRun] = []
    # An outer node precedes its nested nodes: it starts earlier, or starts at the same time and takes longer.
    outer_end = 0.0
    for node in ordered:
        end = node.start_us + node.time_us
        # Compare with `<`, because times are whole microseconds: a node of 0 us that starts when another node ends
        # is not nested.
        inside = bool(marked) and end <= outer_end and node.start_us < outer_end
        marked.append(dataclasses.replace(node, nested=inside))
        if not inside:
            outer_end = end
    return tuple(marked)


# QNN's file for `profiling_file_path` resembles CSV, but names are not escaped: they may contain commas, quotes and
# line breaks. So a row is recognised by its first six columns, and everything up to the next row is its name. The
# rows of one QNN call (compile a graph, load a context, execute a graph) are consecutive: first the backend's rows,
# then the row of the call itself. For a compilation, the rows of its stages follow the row of the call. If several
# graphs are compiled, QNN writes each of these calls twice, except the last.

_QNN: Final = "QNN"
_HEADER: Final = "Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier"
# Some files have an additional last column, which lists the model's nodes (`with_sources`).
_ROW: Final = re.compile(
    r"\d+,(?P<message>[A-Z][A-Z ]*),(?P<value>-?\d+(?:\.\d+)?),(?P<unit>[^,]*),[^,]*,(?P<level>ROOT|SUB-EVENT),"
    r"(?P<name>.*)",
    re.DOTALL,
)
_OPERATOR: Final = re.compile(
    r"(?P<name>.*?)(?P<between>[: ])OpId_\d+(?: \([^)\n]*\))?(?:,(?P<sources>.*))?", re.DOTALL
)


class CallKind(enum.Enum):
    COMPILE = "FINALIZE"
    LOAD = "INIT"
    EXECUTE = "EXECUTE"
    CLOSE = "DEINIT"


_KINDS: Final = {kind.value: kind for kind in CallKind}


@dataclasses.dataclass(frozen=True, slots=True)
class QnnRow:
    """One row of QNN's profile: a name, and a value with its unit.

    Args:
        sources: nodes of the model from which an operator was made, if QNN recorded them.
        is_operator: true if the row is about an operator.
        is_transfer: true for the transfer of all inputs or all outputs of a graph, which is not an operator of the
            model.
    """

    name: str
    value: float
    unit: str
    sources: str = ""
    is_operator: bool = False
    is_transfer: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class QnnCall:
    """One call of QNN's API.

    Args:
        kind: what the call does: compile, load, execute or close.
        time_us: duration in microseconds.
        facts: figures that the backend reports for the call.
        parts: operators of an executed graph, or phases of any other call.
    """

    kind: CallKind
    time_us: float
    facts: tuple[QnnRow, ...]
    parts: tuple[QnnRow, ...]

    def fact(self, name: str) -> float | None:
        return next((row.value for row in self.facts if row.name == name), None)


def read_qnn(path: Path) -> tuple[QnnCall, ...]:
    """Read all calls, in order. Raise `BridgeError` for a missing, truncated or unknown file."""
    check(path, _QNN)
    # Lines end only at "\n", because a name may contain a carriage return.
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        header = file.readline().rstrip("\r\n")
        if not header.startswith(_HEADER):
            raise unusable(path, _QNN, "the file does not start with the expected column names")
        last = ""

        def lines() -> Iterator[str]:
            nonlocal last
            for line in file:
                last = line
                yield line

        calls, rest = _calls(_rows(lines(), with_sources=header.endswith(",ONNX Source Ops")))
    # A process that crashed leaves an incomplete call, or an incomplete line.
    if rest or (last and not last.endswith("\n")):
        raise unusable(path, _QNN, "the file ends in the middle of a call")
    return _without_repeats(calls)


def _rows(lines: Iterable[str], *, with_sources: bool) -> Iterator[tuple[str, str, QnnRow]]:
    """Yield (message, level, parsed row) for each row."""
    record = ""
    for line in lines:
        # A line that does not match continues the name of the previous row.
        if record and _ROW.fullmatch(line.rstrip("\r\n")):
            yield _row(record, with_sources=with_sources)
            record = line
        else:
            record += line
    if record:
        yield _row(record, with_sources=with_sources)


def _row(record: str, *, with_sources: bool) -> tuple[str, str, QnnRow]:
    found = _ROW.fullmatch(record.rstrip("\r\n"))
    if found is None:  # the record is not a row, or is truncated
        return "", "", QnnRow(record, 0, "")
    name, sources, operator = found["name"], "", None
    if found["message"] == "NODE":
        operator = _OPERATOR.fullmatch(name)
    if operator is not None:
        name, sources = operator["name"], operator["sources"] or ""
    elif with_sources:
        name = name.removesuffix(",")
    # The name of an operator is followed by a colon and its number. For the transfer of all inputs or outputs it is
    # followed by a space; "Input" alone could also be the name of a node.
    is_transfer = operator is not None and operator["between"] == " "
    row = QnnRow(name, float(found["value"]), found["unit"], sources, operator is not None, is_transfer)
    return found["message"], found["level"], row


def _calls(rows: Iterable[tuple[str, str, QnnRow]]) -> tuple[list[QnnCall], bool]:
    """Split the rows into calls. Also return whether rows of an unfinished call are left."""
    calls: list[QnnCall] = []
    facts: list[QnnRow] = []
    parts: list[QnnRow] = []
    for message, level, row in rows:
        if not level:
            return calls, True
        kind = _KINDS.get(message) if level == "ROOT" else None
        if kind is not None:
            calls.append(QnnCall(kind, row.value, tuple(facts), tuple(parts)))
            facts, parts = [], []
        elif level == "ROOT":
            facts.append(row)
        # A row after figures of the backend is an operator of the unfinished call. Without such figures, the row is
        # a stage of the previous call, which is a compilation.
        elif facts or not calls:
            parts.append(row)
        else:
            calls[-1] = dataclasses.replace(calls[-1], parts=(*calls[-1].parts, row))
    return calls, bool(facts or parts)


def _without_repeats(calls: Sequence[QnnCall]) -> tuple[QnnCall, ...]:
    """Remove repeated calls: for graphs A to D, QNN writes the calls A, A, B, B, C, C, D."""
    compiled = [call for call in calls if call.kind is CallKind.COMPILE]
    # N graphs with repetitions have 2 N - 1 calls, so an even number means that QNN repeated nothing.
    if len(compiled) % 2 == 0 or any(a != b for a, b in zip(compiled[:-1:2], compiled[1::2], strict=True)):
        return tuple(calls)
    # Compare by identity, because the calls of two graphs may have equal figures.
    repeats = {id(call) for call in compiled[1::2]}
    return tuple(call for call in calls if id(call) not in repeats)
