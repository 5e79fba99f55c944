"""The `qnnbridge` command: the table of its subcommands.

A command's module is imported when the command is looked up. At its top it imports only typer and the standard
library; numpy, rich and the bridge are imported inside the functions. So `qnnbridge --help`, which looks up all
commands, stays quick and works in a half-broken installation.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections import UserDict
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from qnnbridge_tools import output, reporting
from qnnbridge_tools.examples import GUIDES

# Commands by their group in --help, each with "module:name" of its function, or of the typer app of its
# subcommands.
GROUPS = {
    "Start": {
        "setup": "qnnbridge_tools.setup_host.command:setup_host",
        "setup-host": "qnnbridge_tools.setup_host.command:setup_host",
        "doctor": "qnnbridge_tools.commands:doctor",
        "demo": "qnnbridge_tools.commands:demo",
        "pull": "qnnbridge_tools.hub.command:pull",
        "models": "qnnbridge_tools.hub.command:models_app",
        "versions": "qnnbridge_tools.commands:versions",
    },
    "Run": {
        "run": "qnnbridge_tools.commands:run",
        "exec": "qnnbridge_tools.exec_command:exec_program",
        "bench": "qnnbridge_tools.commands:bench",
        "chat": "qnnbridge_tools.generation.chat:chat",
        "transcribe": "qnnbridge_tools.transcribe:transcribe",
    },
    "Prepare models": {
        "inspect": "qnnbridge_tools.commands:inspect",
        "analyze": "qnnbridge_models.commands:analyze",
        "fix": "qnnbridge_models.commands:fix",
        "optimize": "qnnbridge_models.commands:optimize",
        "quantize": "qnnbridge_models.commands:quantize",
        "compile": "qnnbridge_tools.commands:compile_models",
        "wrap": "qnnbridge_tools.commands:wrap",
        "verify": "qnnbridge_models.commands:verify",
        "evaluate": "qnnbridge_models.commands:evaluate",
        "prepare": "qnnbridge_models.commands:prepare",
    },
    "Serve": {
        "serve": "qnnbridge_serve.server:serve",
        "host": "qnnbridge_tools.host.command:app",
        "top": "qnnbridge_tools.commands:top",
    },
    "Diagnose": {
        "report": "qnnbridge_tools.bug_report:report",
        "explain": "qnnbridge_tools.crashes:explain",
        "profile": "qnnbridge_models.commands:profile",
        "crashes": "qnnbridge_tools.crashes:crashes_app",
        "quarantine": "qnnbridge_tools.crashes:quarantine_app",
        "cache": "qnnbridge_tools.cache.command:app",
    },
}
COMMANDS = {name: place for commands in GROUPS.values() for name, place in commands.items()}


class _Commands(UserDict[str, Any]):
    """Commands by name. Each command is imported when it is looked up, so that running it does not import other
    commands.
    """

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        if isinstance(found, str):
            found = self.data[name] = _load(name, found)
        return found


class _Group(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands(COMMANDS)

    def invoke(self, ctx: Any) -> Any:
        """Run a command. For an unknown option, the error suggests similar options of the command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            # Compare the name of the class, because newer versions of typer contain a copy of click.
            if type(error).__name__ == "NoSuchOption":
                unknown: Any = error
                unknown.possibilities = near_options(unknown.option_name, unknown.ctx.command.params)
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in groups, one line for each command."""
        width = max(map(len, COMMANDS))
        for group, names in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(
                    [(name.ljust(width), self.commands[name].get_short_help_str(formatter.width)) for name in names]
                )


class _Command(TyperCommand):
    def make_context(self, *given: Any, **more: Any) -> Any:
        """Parse the arguments. Add an example of a correct command to a usage error."""
        try:
            return super().make_context(*given, **more)
        except Exception as error:
            # Add an example only to a plain UsageError, not to its subclasses for options and missing arguments.
            # Compare the name of the class, because newer versions of typer contain a copy of click.
            guide = GUIDES.get(str(self.name))
            if type(error).__name__ == "UsageError" and guide is not None:
                known: Any = error
                known.message += f"\n  Example: qnnbridge {guide.examples[0][0]}"
            raise


def near_options(unknown: str, parameters: Iterable[Any]) -> list[str]:
    """Return the option with the most similar name, or else an option whose name contains the word, or else all
    options whose description contains the word.
    """
    from qnnbridge_protocol.shown import closest

    options = [one for one in parameters if one.param_type_name == "option" and not one.hidden]
    # Compare without the dashes, which all options have in common.
    names = {text.lstrip("-"): text for one in options for text in (*one.opts, *one.secondary_opts)}
    word = unknown.lstrip("-").lower()
    near = closest(word, names) or next((name for name in names if word and word in name.split("-")), None)
    if near is not None:
        return [names[near]]
    described = [one for one in options if word in re.findall(r"[a-z]+", f"{one.help} {one.metavar}".lower())]
    return [one.opts[0] for one in described] if word else []


def _typer(**settings: Any) -> typer.Typer:
    return typer.Typer(
        rich_markup_mode=None,  # plain help is quick, and lacks characters that an old code page cannot show
        pretty_exceptions_enable=False,
        **{"add_completion": False, **settings},
    )


def _load(name: str, place: str) -> Any:
    module_name, _, attribute = place.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise SystemExit(output.report_incomplete(error)) from None
    found = getattr(module, attribute)
    holder = _typer()
    holder.callback()(lambda: None)  # without a callback, typer drops the name of a single command
    epilog = GUIDES[name].text()
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name, epilog=epilog)
    else:
        settings = {"cls": _Command, **getattr(module, "COMMAND_SETTINGS", {}).get(name, {})}
        holder.command(name, epilog=epilog, **settings)(found)
    group: Any = typer.main.get_command(holder)
    return group.commands[name]


app = _typer(
    name="qnnbridge",
    help="Run ONNX models on the Qualcomm NPU from any Python, in a supervised ARM64 host process.",
    no_args_is_help=True,
    add_completion=True,
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    """Read the options before the subcommand."""


def main() -> int:
    """Run the console script. Return the exit code: 0 done, 1 failed, 2 bad input, 130 Ctrl+C."""
    output.make_streams_safe()
    try:
        # On Windows click expands *, ~ and %NAME%. Prevent this for `exec`, whose program must get its arguments
        # unchanged.
        app(prog_name="qnnbridge", windows_expand_args=sys.argv[1:2] != ["exec"])
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return reporting.EXIT_INTERRUPTED
    return 0
