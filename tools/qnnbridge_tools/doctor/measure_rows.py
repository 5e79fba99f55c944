"""`qnnbridge doctor --numbers`: measure the rows of the known-wrong table with the QNN that sessions use.

``python -m qnnbridge_tools.doctor.measure_rows`` is the measuring process. It runs the example of each row in a
host, prints a JSON line for each row, and stores each result in the state folder at once, so that the process may
be ended at any time. A crash of the host is the result of its row; a new host continues with the next row. The
process uses temporary state and cache folders, so that a crash creates neither a crash report nor a quarantine
entry. An idle daemon starts the same process.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_protocol.settings import FOLDER_VARIABLE, STATE_DIR_VARIABLE
from qnnbridge_tools import signals
from qnnbridge_tools.doctor.facts import NumbersRequest

if TYPE_CHECKING:
    from qnnbridge_host.cache.measured import MeasuredPlace, MeasuredRow
    from qnnbridge_host.model.known_wrong import WrongOperator
    from qnnbridge_host.numerics.measuring import CaseRun

# Time limits in seconds for all rows and for one session. An NPU needs less than a minute for all rows, the
# simulator about two minutes.
TIMEOUT_S: Final = 600.0
SESSION_S: Final = 60.0
# Number of different inputs for each example, because a single correct result can be a coincidence.
DRAWS: Final = 3
_MOST_SAID: Final = 300


def measure_numbers(request: NumbersRequest, on_line: Callable[[dict[str, Any]], None] = lambda line: None) -> str:
    """Measure the rows in a separate process; return why this failed, "" if it succeeded.

    Args:
        request: the rows and the host.
        on_line: called with each line that the process prints: first chip and versions, then each row and its
            state.
    """
    # A frozen program would start itself instead of an interpreter.
    if getattr(sys, "frozen", False) or not sys.executable:
        return "this program is not a Python interpreter that could start another one"
    child = subprocess.Popen(
        numbers_command(request),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        # Discard stderr, which contains expected warnings about the rows.
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        errors="replace",
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )
    assert child.stdout is not None
    problem = "its process ended"
    with child:
        try:
            for line in _lines(child.stdout):
                problem = str(line.get("problem", problem))
                on_line(line)
        except BaseException:
            signals.end(child)
            raise
    return problem


def numbers_command(request: NumbersRequest) -> list[str]:
    """Return the command line of the measuring process."""
    command = [sys.executable, "-m", "qnnbridge_tools.doctor.measure_rows", "--timeout", f"{request.timeout_s:g}"]
    if request.host_python:
        command += ["--host-python", request.host_python]
    if request.soc_model:
        command += ["--soc-model", request.soc_model]
    for row in request.rows:
        command += ["--row", row]
    return command + (["--missing"] if request.missing else []) + (["--npu"] if request.npu else [])


def _lines(stream: Any) -> Iterator[dict[str, Any]]:
    for text in stream:
        try:
            line = json.loads(text)
        except ValueError:
            continue  # not a line of the measurement: a library may have printed it
        if isinstance(line, dict):
            yield line


# --- the process -------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Measure the rows and store each result."""
    from qnnbridge_host.cache.files import work_folder
    from qnnbridge_host.cache.measured import measured_path

    given = _parser().parse_args(arguments)
    request = NumbersRequest(
        given.host_python or "", given.timeout, given.soc_model or "", tuple(given.row), given.missing, given.npu
    )
    target = measured_path()
    logging.getLogger("qnnbridge").setLevel(logging.ERROR)
    with signals.ended_by_signals(), work_folder("numbers") as folder:
        os.environ[STATE_DIR_VARIABLE] = os.path.join(folder, "state")
        os.environ[FOLDER_VARIABLE] = os.path.join(folder, "cache")
        problem = _Measuring(request, target).run()
    _say({"done": not problem, "problem": problem})
    return 1 if problem else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m qnnbridge_tools.doctor.measure_rows", allow_abbrev=False)
    parser.add_argument("--host-python", metavar="PYTHON", help="interpreter of the host")
    parser.add_argument("--timeout", type=float, metavar="S", default=TIMEOUT_S, help="seconds for all rows")
    parser.add_argument("--soc-model", metavar="CHIP", help="chip that the simulator computes for")
    parser.add_argument("--row", action="append", default=[], metavar="NAME", help="measure this row; default all")
    parser.add_argument("--npu", action="store_true", help="measure nothing if QNN runs on its simulator")
    parser.add_argument("--missing", action="store_true", help="measure only rows without a result here")
    return parser


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


class _Measuring:
    """One measurement of the rows. target: file for the results."""

    def __init__(self, request: NumbersRequest, target: Path) -> None:
        self._request = request
        self._target = target
        self._host: Any = None
        # Function that fills QNN's memory in the current host: some operators compute right results by chance in
        # unused memory. None until it is needed.
        self._filling: Callable[[], object] | None = None

    def run(self) -> str:
        """Measure all rows. Return the reason for a failure, "" on success."""
        from qnnbridge_host.cache.measured import MeasuredRows, keep_measured
        from qnnbridge_protocol.errors import BridgeError

        deadline = time.monotonic() + self._request.timeout_s
        try:
            place = self._place()
            if place is None:
                return "this computer cannot compute for the requested chip"
            if self._request.npu and place.simulator:
                return ""  # nothing to measure: the table already contains the results of the simulator
            _say({"place": place.text, "chip": place.chip, "simulator": place.simulator})
            for row in self._rows(place):
                if time.monotonic() > deadline:
                    return f"the time limit of {self._request.timeout_s:g} s expired before {row.name}"
                result = self._measured(row)
                # Store each result at once, so that it is kept even if this process is ended.
                keep_measured(MeasuredRows(place, {row.name: result}, time.time()), self._target)
                _say({"row": row.name, "state": result.state, "snr": result.snr, "why": result.why})
        except BridgeError as error:
            return str(error.message)
        finally:
            self._end_host()
        return ""

    def _place(self) -> MeasuredPlace | None:
        from qnnbridge_host.cache.measured import MeasuredPlace, chip_number

        info = self._running().info
        if info.simulator is None:
            return None
        simulator = info.machine != "ARM64"
        chip = chip_number(self._request.soc_model or None, simulator=simulator)
        return None if chip is None else MeasuredPlace.of(chip, simulator, info.versions)

    def _rows(self, place: MeasuredPlace) -> Iterator[WrongOperator]:
        from qnnbridge_host.cache.measured import unmeasured
        from qnnbridge_host.model.known_wrong import table

        wanted = unmeasured(place, self._target) if self._request.missing else table()
        return (row for row in wanted if not self._request.rows or row.name in self._request.rows)

    def _measured(self, row: WrongOperator) -> MeasuredRow:
        from qnnbridge_host.cache.measured import MeasuredRow, RowState, digest_of
        from qnnbridge_host.numerics.cases import Case
        from qnnbridge_host.numerics.measuring import measured
        from qnnbridge_protocol.errors import EPFail, HostCrashed

        sides = _BridgeSides(self._running(), self._request.soc_model)
        try:
            found = measured(Case.from_words(row.example), sides, draws=DRAWS, fill=self._fill)
        finally:
            sides.close()
        state: RowState = "unclear"
        if found.status in ("right", "wrong"):
            state = "right" if found.status == "right" else "wrong"
        # Skip other errors, for example about incompatible releases, which would occur for every model.
        elif isinstance(sides.error, HostCrashed) or (row.fails and isinstance(sides.error, EPFail)):
            state = "wrong"
        if isinstance(sides.error, HostCrashed):
            self._end_host()  # create a new host, because a crashed host is restarted only after a delay
        snr = None if found.judged is None else round(found.judged.snr, 2)
        return MeasuredRow(state, digest_of(row), snr, found.why[:_MOST_SAID])

    def _running(self) -> Any:
        from qnnbridge import Host

        if self._host is None:
            self._host = Host(python=self._request.host_python or None)
            self._host.start()
        return self._host

    def _fill(self) -> None:
        from qnnbridge_host.numerics.measuring import filling_model

        # Compile the filling model once for each host, because compiling takes longer than running.
        if self._filling is None:
            model, feeds = filling_model()
            run = _BridgeSides(self._running(), self._request.soc_model).qnn(model)
            self._filling = functools.partial(run, feeds)
        self._filling()

    def _end_host(self) -> None:
        self._filling = None
        host, self._host = self._host, None
        if host is not None:
            host.close()


class _BridgeSides:
    """Opens the sessions of one row on the CPU and on QNN, in one host. error: the error of the session on QNN."""

    def __init__(self, host: Any, soc_model: str) -> None:
        self._host = host
        self._options = [{"soc_model": soc_model}] if soc_model else None
        self._sessions: list[Any] = []
        self.error: Exception | None = None

    def cpu(self, model: bytes) -> CaseRun:
        from qnnbridge import GraphOptimizationLevel, SessionOptions

        options = SessionOptions()
        options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
        return self._opened(model, options, providers=["CPUExecutionProvider"])

    def qnn(self, model: bytes) -> CaseRun:
        # Disable rewrites, which would hide the row's fault.
        return self._opened(model, None, provider_options=self._options, fix=False)

    def is_refusal(self, error: Exception) -> bool:
        from qnnbridge_protocol.errors import PlacementRefused

        self.error = error
        return isinstance(error, PlacementRefused)

    def close(self) -> None:
        for session in self._sessions:
            session.close()

    def _opened(self, model: bytes, options: Any, **more: Any) -> CaseRun:
        from qnnbridge import InferenceSession

        session = InferenceSession(
            model, options, host=self._host, cache=False, verify="off", retry=0, timeout=SESSION_S, **more
        )
        self._sessions.append(session)
        return lambda feeds: session.run(None, dict(feeds))


if __name__ == "__main__":
    sys.exit(main())
