"""`qnnbridge report`: write one text file for a bug report.

The report is plain text: a maintainer can read it in the browser, and the user can check it in any editor before
sending it; few users would unpack an archive to do so. Each part is the output of a command in a child process. If
a command fails, crashes or hangs, the report contains the reason, and all other parts are complete.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Annotated, Final

import typer

from qnnbridge_os.missing import why_missing
from qnnbridge_os.outputs import OutputFile, is_stdout
from qnnbridge_protocol import __version__
from qnnbridge_protocol.errors import NoSuchFile
from qnnbridge_protocol.visible import visible
from qnnbridge_tools import output, personal, signals
from qnnbridge_tools.command_line import command
from qnnbridge_tools.options import OverwriteFile

DEFAULT_FILE: Final = Path("qnnbridge-report.txt")
CRASH_REPORTS: Final = 3
LOG_LINES: Final = 200
# Maximum size of a part. Only the end of a longer output is kept, because it contains the latest events.
MAX_PART_CHARS: Final = 200_000
_RULE: Final = "=" * 78
# The doctor's exit codes for healthy, degraded and blocked are results, not failures.
_DOCTOR_CODES: Final = (0, 1, 2)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """Output and exit code of a command. problem: why there is no exit code, or an empty text."""

    stdout: str = ""
    stderr: str = ""
    code: int | None = None
    problem: str = ""


Run = Callable[[Sequence[str]], Outcome]


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """One section of the report."""

    title: str
    text: str


@command
def report(
    to: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Write the report here; - prints it.")
    ] = DEFAULT_FILE,
    model: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="Also describe this model. The report does not contain its weights."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Start no host and hash no file.")] = False,
    timeout: Annotated[float, typer.Option(min=1, metavar="S", help="Seconds for each part.")] = 120.0,
    overwrite: OverwriteFile = False,
) -> None:
    """Write one file for a bug report. Personal paths, names and tokens are replaced."""
    place = OutputFile(to, overwrite=overwrite, inputs=() if model is None else (model,))
    if model is not None and not model.exists():
        raise NoSuchFile(f"There is no model file {model}.", **why_missing(model))

    def run(arguments: Sequence[str]) -> Outcome:
        if sys.stderr is not None and sys.stderr.isatty():
            print(f"... qnnbridge {visible(' '.join(arguments))}", file=sys.stderr, flush=True)
        return run_command(arguments, timeout)

    text = report_text(list(parts(run, model, quick=quick)), personal.this_identity())
    place.write_text(text)
    if not is_stdout(to):
        print(f"Written: {visible(to)} ({output.size_text(len(text))}). Read it before you send it.")


def parts(run: Run, model: Path | None = None, *, quick: bool = False) -> Iterator[Part]:
    """Collect all sections. run: runs one `qnnbridge` command."""
    # The doctor prints the snapshot on stdout and its findings on stderr.
    words = ["doctor", "--snapshot", "-", *(["--quick"] if quick else [])]
    doctor = run(words)
    code = 0 if doctor.code in _DOCTOR_CODES else doctor.code
    yield Part("Findings of the doctor", _shown(dataclasses.replace(doctor, stdout="", code=code)))
    if not quick:
        yield _part(run, "Versions", "--version")
    for words in (["crashes", "list"], ["quarantine", "list"], ["cache", "list"], ["host", "status"]):
        yield _part(run, "qnnbridge " + " ".join(words), *words)
    listed = run(["crashes", "list", "--json"])
    for number, report_id in enumerate(_report_ids(listed.stdout)[:CRASH_REPORTS], 1):
        yield _part(run, f"Crash report {number}: {report_id}", "crashes", "show", report_id)
    yield _part(run, f"The daemon's log, last {LOG_LINES} lines", "host", "logs", "-n", str(LOG_LINES))
    if model is not None:
        yield _part(run, "The model", "inspect", "--", str(model))
    # The snapshot comes last, because it is long, and because `doctor --from-snapshot` reads the end of a report.
    yield Part("Snapshot for `qnnbridge doctor --from-snapshot`", doctor.stdout or _shown(doctor))


def report_text(sections: Sequence[Part], identity: personal.Identity) -> str:
    """Return the whole report without personal data."""
    body = "\n".join(f"{_RULE}\n{part.title}\n{_RULE}\n\n{part.text.rstrip()}\n" for part in sections)
    cleaned, counts = personal.without_personal(body, identity)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    replaced = ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "nothing"
    lines = [
        f"qnnbridge report, version {__version__}, {now}",
        "",
        "Please read this file before you send it. It does not contain weights or tensors. It contains names of",
        "models, of their inputs and operators, and of folders; only the path of the home folder is replaced.",
        f"Replaced by placeholders, with the number of replacements: {replaced}.",
    ]
    if hidden := len(identity.not_searched()):
        lines.append(f"{hidden} names of users or computers are short or common words, replaced only in paths.")
    lines += ["", *(f"- {personal.without_personal(part.title, identity)[0]}" for part in sections), "", ""]
    return "\n".join(lines) + cleaned


def run_command(arguments: Sequence[str], timeout: float) -> Outcome:
    """Run a `qnnbridge` command in a child process. The outcome reports all failures of the process."""
    # PYTHONSAFEPATH: otherwise files such as json.py in the current folder replace Python's own modules.
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:backslashreplace", "PYTHONSAFEPATH": "1"}
    # Use files instead of pipes, which a process that outlives the command would keep open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code, problem = None, ""
        try:
            # Run the module, because the script `qnnbridge` need not be on the PATH.
            child = subprocess.Popen(
                [sys.executable, "-m", "qnnbridge_tools", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
            )
            try:
                code = child.wait(timeout)
            except BaseException:
                signals.end(child)
                raise
        except subprocess.TimeoutExpired:
            problem = f"the command did not end within {timeout:g} s"
        except OSError as error:
            problem = str(error)
        return Outcome(_text_of(out), _text_of(err), code, problem)


def _part(run: Run, title: str, *words: str) -> Part:
    return Part(title, _shown(run(words)))


def _shown(outcome: Outcome) -> str:
    lines = [text.rstrip() for text in (outcome.stdout, outcome.stderr) if text.strip()]
    if outcome.problem:
        lines.append(f"This part is incomplete: {outcome.problem}.")
    elif outcome.code:
        lines.append(f"The command ended with exit code {outcome.code}.")
    shown = "\n".join(lines) or "The command printed nothing."
    if len(shown) <= MAX_PART_CHARS:
        return shown
    # Begin with a complete line or word, because an incomplete name or secret would not be recognised.
    end = shown[-MAX_PART_CHARS:]
    separator = r"\n" if "\n" in end else r"\s"
    return f"[...]\n{re.split(separator, end, maxsplit=1)[-1]}"


def _report_ids(text: str) -> list[str]:
    import json

    try:
        return [str(one["id"]) for one in json.loads(text)["reports"]]
    except (ValueError, LookupError, TypeError):
        return []  # `crashes list` failed, and the report already contains its error


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace").replace("\r\n", "\n")
