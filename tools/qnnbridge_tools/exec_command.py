"""`qnnbridge exec SCRIPT.py [ARGS]` and `qnnbridge exec -m MODULE [ARGS]`.

The command runs an unmodified program whose calls of ``onnxruntime`` are answered by qnnbridge. With
``--report`` the use of each model is summed over all processes of the program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_os.missing import why_missing
from qnnbridge_protocol.errors import NoSuchFile, OptionError
from qnnbridge_protocol.model_records import WORST_FIRST, NumbersReport
from qnnbridge_tools import options
from qnnbridge_tools.command_line import command


class ExecCommand(TyperCommand):
    """Command that passes everything after ``-m MODULE`` to the module, as Python's own ``-m`` does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._ended_by_module(args))

    def _ended_by_module(self, args: list[str]) -> list[str]:
        with_value = {name for one in self.params if not getattr(one, "is_flag", True) for name in one.opts}
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] not in ("-", "--"):
            following = at + (2 if args[at] in with_value else 1)
            # -mMODULE is one word, -m MODULE two.
            if args[at].startswith("-m") and following <= len(args):
                # Without the dashes click would parse an option after the module's name as an option of this
                # command.
                return [*args[:following], "--", *args[following:]]
            at = following
        return args


# Everything after the script is passed to the script.
COMMAND_SETTINGS = {"exec": {"cls": ExecCommand, "context_settings": {"allow_interspersed_args": False}}}


@command
def exec_program(
    *,
    program: Annotated[
        tuple[str, ...], typer.Argument(metavar="SCRIPT.py [ARGS]...", help="The program and its arguments.")
    ] = (),
    module: Annotated[str | None, typer.Option("-m", metavar="MODULE", help="Run a module, as python -m.")] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            help="as-requested: the providers that the program requests; qnn: QNN where possible; cpu. "
            "Default: QNNBRIDGE_DROPIN_PROVIDER, else as-requested."
        ),
    ] = None,
    dim: options.Dims,
    bucket: Annotated[
        tuple[str, ...],
        typer.Option(
            "--bucket",
            metavar="NAME=16,32",
            help="Sizes of a free dimension. Other sizes are padded to the next larger one. May be repeated.",
        ),
    ] = (),
    report: Annotated[
        bool,
        typer.Option(
            "--report", help="Print a summary at the end: models, where they ran, calls, time, crashes survived."
        ),
    ] = False,
) -> None:
    """Run a program written for onnxruntime, unchanged, on the bridge."""
    from qnnbridge.ort._placement import POLICIES, given_sizes, policy

    chosen = policy() if provider is None else provider
    if chosen not in POLICIES:
        raise OptionError(f"--provider {chosen} is not known.", fix=f"Give one of {', '.join(POLICIES)}.")
    if not module and not program:
        raise OptionError("No program is given.", fix="Run qnnbridge exec SCRIPT.py, or qnnbridge exec -m MODULE.")

    sizes = dimension_sizes(dim, bucket) or given_sizes()
    wanted = Program(module, list(program)) if module else Program(None, list(program[1:]), script=program[0])
    wanted.check()
    environ, has_folder = environment_for(chosen, sizes)
    raise typer.Exit(run_program(wanted.command(has_folder=has_folder), environ, report))


@dataclasses.dataclass
class ModelUse:
    """The use of one model in all processes and sessions."""

    model: str
    where: str
    cause: str | None
    sessions: int = 0
    calls: int = 0
    failed: int = 0
    seconds: float = 0.0
    numbers: NumbersReport | None = None


def read_records(folder: str) -> list[dict[str, Any]]:
    """Return the records of all processes; a truncated file of a killed process is skipped."""
    found = []
    for name in sorted(os.listdir(folder)):
        with contextlib.suppress(OSError, ValueError), open(os.path.join(folder, name), encoding="utf-8") as file:
            found.append(json.load(file))
    return found


def summed_up(records: Sequence[dict[str, Any]]) -> list[ModelUse]:
    lines: dict[tuple[str, str], ModelUse] = {}
    for record in (one for process in records for one in process["models"]):
        where = _where(record)
        line = lines.setdefault((record["model"], where), ModelUse(record["model"], where, record["cause"]))
        line.sessions += record["sessions"]
        line.calls += record["calls"]
        line.failed += record["failed"]
        line.seconds += record["seconds"]
        if (wire := record.get("numbers")) is not None:
            found = [NumbersReport.from_wire(wire), *filter(None, [line.numbers])]
            line.numbers = min(found, key=lambda one: (WORST_FIRST.index(one.state), -one.compared))
    return list(lines.values())


def _where(record: dict[str, Any]) -> str:
    qnn, cpu = record["qnn_nodes"], record["cpu_nodes"]
    if qnn and cpu:
        return f"QNN {_count(qnn, 'node')}, CPU {cpu}"
    return f"QNN, all of {_count(qnn, 'node')}" if qnn else f"CPU, all of {_count(cpu, 'node')}" if cpu else "CPU"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun[-1] in 'sh' else 's'}"


def print_report(folder: str) -> None:
    """Print the report on stderr, because stdout belongs to the program."""
    from qnnbridge_protocol.specs import AFTER_OPTIMISATION
    from qnnbridge_tools import output

    records = read_records(folder)
    lines = summed_up(records)
    print("\nqnnbridge report", file=sys.stderr)
    if not lines:
        print("  The program created no session.", file=sys.stderr)
        return
    where = f"ran on (nodes {AFTER_OPTIMISATION})"
    rows = [["model", where, "sessions", "calls", "failed", "time in calls", "numbers"]]
    rows += [
        [
            output.visible(line.model),
            line.where,
            str(line.sessions),
            str(line.calls),
            str(line.failed),
            output.seconds(line.seconds),
            "-" if line.numbers is None or line.numbers.state == "off" else line.numbers.verdict,
        ]
        for line in lines
    ]
    print(output.plain_table(rows, indent="  "), file=sys.stderr)
    for line in lines:
        model, numbers = output.visible(line.model), line.numbers
        if line.cause:
            print(f"  {model}: {output.visible(line.cause)}", file=sys.stderr)
        if numbers is not None and numbers.state in ("differs", "unknown"):
            why = " ".join(filter(None, (numbers.reason, numbers.cause)))
            print(f"  {model}: numbers {numbers.verdict}: {output.visible(why)}", file=sys.stderr)
    died = _count(sum(int(one["crashes"]) for one in records), "crash")
    repeated = _count(sum(int(one["retried_calls"]) for one in records), "call")
    processes = _count(len(records), "process")
    print(f"  {died} of the host, {repeated} repeated after a crash; {processes}", file=sys.stderr)


@dataclasses.dataclass(frozen=True)
class Program:
    """A script or a module, and its arguments."""

    module: str | None
    arguments: list[str]
    script: str | None = None

    def check(self) -> None:
        """Raise `NoSuchFile` if the script or module does not exist."""
        if self.script is not None and self.script != "-" and not os.path.exists(self.script):
            raise NoSuchFile(
                f"There is no program {self.script}.", **why_missing(self.script, "Give the path of a Python file.")
            )
        # Only the outermost package is searched: to find a module within it, Python would import the package.
        if self.module is not None and importlib.util.find_spec(self.module.partition(".")[0]) is None:
            # `python -m` searches the working folder as well.
            sys.path.insert(0, os.getcwd())
            found = importlib.util.find_spec(self.module.partition(".")[0])
            del sys.path[0]
            if found is None:
                raise NoSuchFile(f"There is no module {self.module}.", fix="Install it, or check its name.")

    def command(self, *, has_folder: bool) -> list[str]:
        """Return the command line of the program, with the options that this Python was started with.

        has_folder: whether the program finds the drop-in with the environment of `environment_for`.
        """
        start = ["-m", self.module] if self.module is not None else [str(self.script)]
        # With -E or -I, Python ignores the variables that would load the hook.
        reads_path = has_folder and not sys.flags.ignore_environment
        by_hand = [] if reads_path else ["-m", "qnnbridge.ort._import_hook"]
        return [sys.executable, *interpreter_options(sys.orig_argv), *by_hand, *start, *self.arguments]


def interpreter_options(command: Sequence[str]) -> list[str]:
    """Return the options of Python in its command line: those before ``-m``, ``-c`` or the program."""
    found: list[str] = []
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-") or word == "-":
            break
        # Short options can be joined: -Om MODULE. The value of -X and -W is the rest of the word, or the next word.
        special = next((at for at, letter in enumerate(word) if letter in "mcXW"), None)
        if word.startswith("--"):
            found += [word, next(words, "")]  # --check-hash-based-pycs: the only long option that takes a value
        elif special is None:
            found.append(word)
        elif word[special] in "XW":
            found += [word] if word[special + 1 :] else [word, next(words, "")]
        else:
            found += [word[:special]] if special > 1 else []
            break
    return found


def dimension_sizes(dims: Dimensions, buckets: Sequence[str]) -> dict[str, int | list[int]]:
    """Return the sizes of `--dim` and `--bucket`. Raises `OptionError`."""
    from qnnbridge_tools.arguments import read_bucket_sizes

    sizes: dict[str, int | list[int]] = dict(dims.by_name)
    for name, listed in read_bucket_sizes(buckets).items():
        if name in sizes:
            raise OptionError(f'"{name}" is in --dim and in --bucket.', fix="Give it once.")
        sizes[name] = listed
    return sizes


def environment_for(provider: str, sizes: Mapping[str, int | list[int]]) -> tuple[dict[str, str], bool]:
    """Return (environment of the program, whether Python finds the drop-in with this environment).

    Raises:
        HostError: the host's version is needed, but no host was found.
    """
    from qnnbridge.ort import _children
    from qnnbridge.ort._placement import POLICY_VARIABLE, SIZES_VARIABLE

    environ = dict(os.environ)
    environ[POLICY_VARIABLE] = provider
    if sizes:
        environ[SIZES_VARIABLE] = json.dumps(sizes)
    return environ, _children.offer_to_children(environ)


def run_program(command: list[str], environ: dict[str, str], report: bool) -> int:
    """Run the program and return its exit code, or 128 plus the number of the signal that ended it."""
    from qnnbridge.ort._placement import REPORT_VARIABLE

    if not report:
        # On Windows, `exec` starts another process and ends this one. The parent would conclude that the program
        # has ended.
        if sys.platform != "win32":
            os.execve(sys.executable, command, environ)  # noqa: S606 - no shell is wanted
        return _wait(subprocess.Popen(command, env=environ))

    with tempfile.TemporaryDirectory(prefix="qnnbridge-report-", ignore_cleanup_errors=True) as folder:
        code = _wait(subprocess.Popen(command, env={**environ, REPORT_VARIABLE: folder}))
        print_report(folder)
    return code


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code of the program.

    The program handles Ctrl+C; a signal to this process is passed on to it.
    """

    def pass_on(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            process.send_signal(number)

    # The terminal sends Ctrl+C to the program as well; this process waits for the program's reaction.
    handlers: dict[int, Any] = {signal.SIGINT: signal.SIG_IGN}
    handlers |= {getattr(signal, name): pass_on for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code
