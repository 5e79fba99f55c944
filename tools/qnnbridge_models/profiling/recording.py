"""Runs a model with both profiles switched on, and reads what they wrote.

The files lie in a temporary folder that is gone afterwards, whatever happens. QNN writes its file while it works
and ONNX Runtime at the end of profiling, so they are read when the host has ended and nothing writes to them any
more. One call at a time; a host of its own, so that no other session disturbs it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.cache.files import work_folder
from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_host.model.paths import native_path
from qnnbridge_host.model.scan import scan_model
from qnnbridge_models.command_options import ProfileRequest
from qnnbridge_models.profiling import files
from qnnbridge_models.progress import OnProgress
from qnnbridge_protocol.errors import BridgeError, NoSuchFile, OptionError
from qnnbridge_protocol.specs import Placement
from qnnbridge_tools import arguments, feeds
from qnnbridge_tools.run_once import started_host

if TYPE_CHECKING:
    from qnnbridge import HostInfo, InferenceSession, SessionOptions

QNN_PROVIDER: Final = "QNNExecutionProvider"
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
    session: files.OrtProfile
    calls: tuple[files.QnnCall, ...]
    trace: files.OpTrace


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
            providers=[QNN_PROVIDER],
            provider_options=[_provider_options(request, folder)],
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
    profile = files.read_ort(Path(session_file) if session_file else folder / f"{ORT_PREFIX}.json")
    if len(profile.runs) != len(calls_s):
        raise BridgeError(
            f"ONNX Runtime's profile has {len(profile.runs)} runs instead of {len(calls_s)}.",
            cause="The session was made anew in between, or ONNX Runtime's limit of events was reached.",
            fix="Run the command again, with fewer --runs for a large model.",
        )
    on_qnn = any(node.provider == QNN_PROVIDER for run in profile.runs for node in run.nodes)
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
        calls=files.read_qnn(folder / QNN_FILE) if on_qnn else (),
        trace=files.read_op_trace(folder / files.OP_TRACE_FILE),
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
            files.check_size(growing.stat().st_size, "QNN")
    on_progress("Running", runs, runs)
    return calls_s, results


def _session_options(dimensions: Dimensions, folder: Path) -> SessionOptions:
    from qnnbridge import SessionOptions

    options = arguments.session_options(dimensions) or SessionOptions()
    options.enable_profiling = True
    # ONNX Runtime adds the time and ".json" to it.
    options.profile_file_prefix = str(folder / ORT_PREFIX)
    return options


def _provider_options(request: ProfileRequest, folder: Path) -> dict[str, str]:
    return {
        **arguments.with_chip(request.provider_options, request.soc_model),
        # With a level the host does not use its cache, so that QNN's file has the compilation.
        "profiling_level": request.level,
        "profiling_file_path": str(folder / QNN_FILE),
        "enable_framework_op_trace": "1",
        "framework_op_trace_dir": str(folder),
    }


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
