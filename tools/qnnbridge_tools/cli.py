"""The `qnnbridge` command: which subcommands there are, and nothing else.

A command module imports only typer and the standard library at its top; numpy, rich and the bridge are imported
inside the functions, so that `qnnbridge --help` stays quick and works in a half-broken installation.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from qnnbridge_models import commands as models
from qnnbridge_serve import command as serving
from qnnbridge_tools import commands, crashes, reporting
from qnnbridge_tools import exec_command as exec_program
from qnnbridge_tools import transcribe as speech
from qnnbridge_tools.cache import command as cache
from qnnbridge_tools.generation import chat as generation
from qnnbridge_tools.host import command as host
from qnnbridge_tools.setup_host import command as setup_host

app = typer.Typer(
    name="qnnbridge",
    help="Run ONNX models on the Qualcomm NPU from any Python, in a supervised ARM64 host process.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: quick, and no glyphs that an old code page lacks
    pretty_exceptions_enable=False,
)
app.command("demo")(commands.demo)
app.command("doctor")(commands.doctor)
app.command("run")(commands.run)
app.command("exec", cls=exec_program.ExecCommand, context_settings=exec_program.CONTEXT_SETTINGS)(
    exec_program.exec_program
)
app.command("compile")(commands.compile_models)
app.command("bench")(commands.bench)
app.command("chat")(generation.chat)
app.command("transcribe")(speech.transcribe)
app.command("explain", context_settings=crashes.EXPLAIN_CONTEXT)(crashes.explain)
app.command("inspect")(commands.inspect)
app.command("wrap")(commands.wrap)
app.command("analyze")(models.analyze)
app.command("fix")(models.fix)
app.command("optimize")(models.optimize)
app.command("quantize")(models.quantize)
app.command("evaluate")(models.evaluate)
app.command("verify")(models.verify)
app.command("prepare")(models.prepare)
app.command("profile")(models.profile)
app.command("versions")(commands.versions)
app.command("serve")(serving.serve)
app.command("setup-host")(setup_host.setup_host)
app.command("top")(commands.top)
app.add_typer(host.app, name="host")
app.add_typer(cache.app, name="cache")
app.add_typer(crashes.crashes_app, name="crashes")
app.add_typer(crashes.quarantine_app, name="quarantine")


@app.callback()
def common(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=reporting.show_and_exit,
            is_eager=True,
            help="Show the versions of the application side and of the host, and exit.",
        ),
    ] = False,
) -> None:
    """Options that stand before the subcommand."""


def main() -> int:
    """Entry point of the console script. Returns the exit code: 0 done, 1 failed, 2 bad input, 130 Ctrl+C."""
    reporting.make_streams_safe()
    try:
        # On Windows click expands *, ~ and %NAME%: not for a program that gets its arguments as they are.
        app(prog_name="qnnbridge", windows_expand_args=sys.argv[1:2] != ["exec"])
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return reporting.EXIT_INTERRUPTED
    return 0
