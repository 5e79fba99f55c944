"""Runs a model with both profiles switched on, and reads what they wrote.

The files lie in a temporary folder that is gone afterwards, whatever happens. QNN writes its file while it works
and ONNX Runtime at the end of profiling, so they are read when the host has ended and nothing writes to them any
more. One call at a time; a host of its own, so that no other session disturbs it.
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
from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_host.model.op_trace import TRACE_FILE
from qnnbridge_host.model.paths import native_path
from qnnbridge_host.model.scan import scan_model
from qnnbridge_models.command_options import ProfileRequest
from qnnbridge_models.progress import OnProgress
from qnnbridge_protocol.errors import BridgeError, NoSuchFile, OptionError
from qnnbridge_protocol.specs import QNN, Placement
from qnnbridge_tools import arguments, feeds
from qnnbridge_tools.run_once import started_host

if TYPE_CHECKING:
    from qnnbridge import HostInfo, InferenceSession, SessionOptions

QNN_FILE: Final = "qnn.csv"
ORT_PREFIX: Final = "ort"
# Of made-up inputs: the same in each call, so that two profiles can be compared.
SEED: Final = 0
# The provider refuses a level without a file, so both are the command's.
_OWN_OPTIONS: Final = (
    "profiling_level",
    "profiling_file_path",
    "enable_framework_op_trace",
    "framework_op_trace_dir",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """Everything that was measured.

    Args:
        calls_s: each call as the application saw it.
        calls: those of QNN.
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
    """All that can be refused without a host is refused before one is started."""
    if not request.model.exists():
        raise NoSuchFile(f"There is no model file {request.model}.")
    # Two writers of one option: the command's own value would silently win.
    if own := sorted(set(request.provider_options) & set(_OWN_OPTIONS)):
        raise OptionError(
            f"The provider option {own[0]} is set by this command itself.",
            fix="Leave it out; --level chooses the profiling level.",
        )
    loaded = feeds.load(*arguments.read_one_set(request.inputs))

    scan = scan_model(request.model, count_nodes=False)
    arguments.refuse_unknown((scan,), request.sizes.dims)
    # A new folder each time: QNN appends to a file that is there.
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
                    # With a level the host does not use its cache, so that QNN's file has the compilation.
                    "profiling_level": request.level,
                    "profiling_file_path": str(folder / QNN_FILE),
                    "enable_framework_op_trace": "1",
                    "framework_op_trace_dir": str(folder),
                }
            ],
            host=host,
            timeout=request.timeout,
            # Nodes on the CPU are part of what a profile shows.
            fallback="cpu",
            # A repeated run would be in the profile twice.
            retry=0,
            # The names in the model identify the nodes.
            fix=False,
            # A comparison with the CPU would take its time from the runs that are measured.
            verify=False,
        ) as session:
            create_s = time.perf_counter() - begun
            given = feeds.complete(session.get_inputs(), loaded, request.sizes.dims, seed=SEED)
            calls_s, results = _timed_runs(session, given, request.runs, folder / QNN_FILE, on_progress)
            session_file = session.end_profiling()
            placement = session.placement
            types = {node.name: node.type for node in session.get_inputs()}
    # QNN writes its file while it works, and ONNX Runtime at the end: now that the host has ended nothing writes
    # any more. Without the name of a file the error is about one that is not there.
    profile = read_ort(Path(session_file) if session_file else folder / f"{ORT_PREFIX}.json")
    if len(profile.runs) != len(calls_s):
        raise BridgeError(
            f"ONNX Runtime's profile has {len(profile.runs)} runs instead of {len(calls_s)}.",
            cause="The session was made anew in between, or ONNX Runtime's limit of events was reached.",
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
        # With all nodes on the CPU a missing file is no error.
        calls=read_qnn(folder / QNN_FILE) if on_qnn else (),
        trace=read_op_trace(folder / OP_TRACE_FILE),
    )


def _timed_runs(
    session: InferenceSession, given: Sequence[feeds.Feed], runs: int, growing: Path, on_progress: OnProgress
) -> tuple[list[float], list[Any]]:
    """The seconds of each call, and the last results. Ends early once QNN's file is too large to be read."""
    values = {feed.name: feed.value for feed in given}
    calls_s: list[float] = []
    results: list[Any] = []
    for number in range(runs):
        on_progress("Running", number, runs)
        begun = time.perf_counter()
        results = session.run_values(None, values)
        calls_s.append(time.perf_counter() - begun)
        # Looked at between the runs: at the end a file that is too large would make all of them useless.
        if growing.exists():
            check_size(growing.stat().st_size, "QNN")
    on_progress("Running", runs, runs)
    return calls_s, results


def _session_options(dimensions: Dimensions, folder: Path) -> SessionOptions:
    from qnnbridge import SessionOptions

    options = arguments.session_options(dimensions) or SessionOptions()
    options.enable_profiling = True
    # ONNX Runtime adds the time and ".json" to it.
    options.profile_file_prefix = str(folder / ORT_PREFIX)
    return options


def _for_qnn(folder: str) -> str:
    """The folder by a name with which QNN can open files in it."""
    try:
        return native_path(folder)
    except OSError as error:
        raise BridgeError(
            "QNN cannot write its profile into the temporary folder.",
            cause=f"{error}.",
            fix="Set TEMP to a folder with a plain English name (A to Z) and run the command again.",
        ) from None


def _size(value: Any) -> int:
    """Bytes of a tensor, 0 of a sequence or a map: those are not worth a walk through them."""
    return int(getattr(value, "nbytes", 0) or getattr(getattr(value, "data", None), "nbytes", 0))


# --- the files that a profiled run leaves: the profile of ONNX Runtime, that of QNN, and its trace -------------

# More is not read: it is thousands of runs, and a tenth of them gives the same medians.
MAX_PROFILE_BYTES: Final = 256 << 20

# The provider gives the name.
OP_TRACE_FILE: Final = TRACE_FILE
MAX_TRACE_BYTES: Final = 64 << 20


def check(path: Path, whose: str) -> None:
    """Raises if there is no file to read, or too much of it. ``whose`` is the writer: "QNN"."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise BridgeError(
            f"{whose} wrote no profile.",
            cause=f"The file that it was to write, {path.name}, is not there.",
            fix="Look whether the disk is full. If it is not, try --level basic.",
        ) from None
    check_size(size, whose)


def check_size(size: int, whose: str) -> None:
    if size > MAX_PROFILE_BYTES:
        raise BridgeError(
            f"The profile of {whose} is too large: {size >> 20} MiB, of which {MAX_PROFILE_BYTES >> 20} are read.",
            cause="It has an entry for each operator and run.",
            fix="Profile fewer runs: --runs 10. --level basic leaves out the operators.",
        )


def unusable(path: Path, whose: str, why: str) -> BridgeError:
    return BridgeError(
        f"The profile of {whose} cannot be read: {why}.",
        cause=f"{path.name} was not written to its end, or this version of {whose} writes it in another way.",
        fix="Run the command again. If the disk is full, make room first.",
        details={"file": path.name},
    )


# QNN's operators of each graph with their types, both in the order in which they were compiled.
OpTrace = Mapping[str, Mapping[str, str]]


def read_op_trace(path: Path) -> OpTrace:
    """The operators of QNN, graph by graph.

    The provider writes it while it compiles (from 2.4 on), so there is none for a compiled model.
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
        # No trace is no fault: the times are shown without the names of the model's nodes.
        return {}


# ONNX Runtime writes one event a line, so the file is read line by line and never held whole. Events of a run stand
# before the event `model_run` that ends it; a node that runs within another (the body of If, Loop, Scan) is nested,
# and its time is contained in the outer one's.

_ORT: Final = "ONNX Runtime"
_NODE_SUFFIX: Final = "_kernel_time"


@dataclasses.dataclass(frozen=True, slots=True)
class NodeRun:
    """One execution of one node. Bytes are those of its tensors that are no constants."""

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
        nodes: in the order in which they began.
    """

    time_us: float
    nodes: tuple[NodeRun, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class OrtProfile:
    parse_us: float
    initialize_us: float
    runs: tuple[OrtRun, ...]


def read_ort(path: Path) -> OrtProfile:
    """Raises `BridgeError` for a file that is missing, cut off or something else."""
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
        # The name goes on with where the model comes from: model_loading_uri for a file.
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
            # The file is one JSON list with an event on each line; read as a whole it would take several times
            # its size.
            text = line.strip().removeprefix("[" if number == 1 else "")
            if text.endswith("]"):
                ended, text = True, text[:-1]
            if not (text := text.strip().rstrip(",")):
                continue
            try:
                event = json.loads(text)
                # An event without a duration is none of a profile, and means that the file is damaged.
                float(event["dur"])
            except (ValueError, TypeError, KeyError, RecursionError):
                raise unusable(path, _ORT, f"line {number} is no event") from None
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
    # ONNX Runtime writes these numbers as text.
    return int(text) if isinstance(text, (str, int)) and str(text).isdecimal() else 0


def _nested(nodes: list[NodeRun]) -> tuple[NodeRun, ...]:
    """In order of their beginning, with those marked that lie within another one."""
    ordered = sorted(nodes, key=lambda node: (node.start_us, -node.time_us))
    marked: list[NodeRun] = []
    # The outer nodes come first: they begin earlier, or at the same time and take longer.
    outer_end = 0.0
    for node in ordered:
        end = node.start_us + node.time_us
        # Times are whole microseconds: a node of 0 us that begins where another one ends comes after it.
        inside = bool(marked) and end <= outer_end and node.start_us < outer_end
        marked.append(dataclasses.replace(node, nested=inside))
        if not inside:
            outer_end = end
    return tuple(marked)


# What QNN's provider writes for `profiling_file_path` looks like CSV, but names in it are written as they are: with
# commas, quotes and line breaks. So lines are recognised by their first six columns, and everything up to the next
# such line is the name. The rows of one call of QNN (compile a graph, load a context, execute a graph) stand
# together. Those of the backend come first and the call's own row ends them; parts of a compilation follow it. When
# several graphs are compiled, each but the last is written twice.

_QNN: Final = "QNN"
_HEADER: Final = "Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier"
# 0,BACKEND,77941,CYCLES,BACKEND,ROOT,Accelerator (execute) time (cycles),
# 0,NODE,67382,CYCLES,BACKEND,SUB-EVENT,add1:OpId_26 (cycles),add1
# 0,EXECUTE,51969,US,BACKEND,ROOT,QNN (execute) time,
# The nodes of the model behind the last comma are a column that not every file has (`with_sources`).
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
    """One figure.

    Args:
        sources: of an operator, the nodes of the model that it was made from, if QNN was asked.
        is_transfer: not an operator of the model, but all inputs or all outputs of a graph on their way.
    """

    name: str
    value: float
    unit: str
    sources: str = ""
    is_operator: bool = False
    is_transfer: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class QnnCall:
    """One call of QNN.

    Args:
        facts: what the backend reports of it.
        parts: its phases, or the operators of a graph.
    """

    kind: CallKind
    time_us: float
    facts: tuple[QnnRow, ...]
    parts: tuple[QnnRow, ...]

    def fact(self, name: str) -> float | None:
        return next((row.value for row in self.facts if row.name == name), None)


def read_qnn(path: Path) -> tuple[QnnCall, ...]:
    """All calls, in order. Raises `BridgeError` for a file that is missing, cut off or something else."""
    check(path, _QNN)
    # Lines end at "\n" alone: a name may hold a carriage return.
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        header = file.readline().rstrip("\r\n")
        if not header.startswith(_HEADER):
            raise unusable(path, _QNN, "it does not begin with the names of its columns")
        last = ""

        def lines() -> Iterator[str]:
            nonlocal last
            for line in file:
                last = line
                yield line

        calls, rest = _calls(_rows(lines(), with_sources=header.endswith(",ONNX Source Ops")))
    # A process that ended in the middle leaves half a call, or half a line.
    if rest or (last and not last.endswith("\n")):
        raise unusable(path, _QNN, "it ends in the middle of a call")
    return _without_repeats(calls)


def _rows(lines: Iterable[str], *, with_sources: bool) -> Iterator[tuple[str, str, QnnRow]]:
    """Message, level and figure of each row."""
    record = ""
    for line in lines:
        # A line that does not look like a row continues the name of the row before it.
        if record and _ROW.fullmatch(line.rstrip("\r\n")):
            yield _row(record, with_sources=with_sources)
            record = line
        else:
            record += line
    if record:
        yield _row(record, with_sources=with_sources)


def _row(record: str, *, with_sources: bool) -> tuple[str, str, QnnRow]:
    found = _ROW.fullmatch(record.rstrip("\r\n"))
    if found is None:  # the first line of all is no row, or half a one
        return "", "", QnnRow(record, 0, "")
    name, sources, operator = found["name"], "", None
    if found["message"] == "NODE":
        operator = _OPERATOR.fullmatch(name)
    if operator is not None:
        name, sources = operator["name"], operator["sources"] or ""
    elif with_sources:
        name = name.removesuffix(",")
    # An operator has its name, a colon, its number.
    # All inputs, or outputs, of a graph have a space there; "Input" may also be the name of a node of the model.
    is_transfer = operator is not None and operator["between"] == " "
    row = QnnRow(name, float(found["value"]), found["unit"], sources, operator is not None, is_transfer)
    return found["message"], found["level"], row


def _calls(rows: Iterable[tuple[str, str, QnnRow]]) -> tuple[list[QnnCall], bool]:
    """The calls, and whether rows are left over that no call ends."""
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
        # Operators come between the backend's figures and the row that ends their call. The stages of a compilation
        # come behind that row, before any figure of the next call.
        elif facts or not calls:
            parts.append(row)
        else:
            calls[-1] = dataclasses.replace(calls[-1], parts=(*calls[-1].parts, row))
    return calls, bool(facts or parts)


def _without_repeats(calls: Sequence[QnnCall]) -> tuple[QnnCall, ...]:
    """Of graphs compiled one after the other QNN writes A, A B, B C, C D: each is kept once."""
    compiled = [call for call in calls if call.kind is CallKind.COMPILE]
    # With the repeats N graphs have 2 N - 1 rows, always an odd number.
    if len(compiled) % 2 == 0 or any(a != b for a, b in zip(compiled[:-1:2], compiled[1::2], strict=True)):
        return tuple(calls)
    # By identity: calls of two graphs may be equal in all figures.
    repeats = {id(call) for call in compiled[1::2]}
    return tuple(call for call in calls if id(call) not in repeats)
