"""`qnnbridge crashes`, `quarantine` and `explain`: crash reports, models that killed hosts, and exit codes.

Reports of hosts that were ended on purpose, and of processes that are not hosts, are shown only with ``--ended``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from qnnbridge_protocol.errors import BridgeError, OptionError
from qnnbridge_protocol.visible import visible
from qnnbridge_tools.command_line import command
from qnnbridge_tools.options import AsJson

if TYPE_CHECKING:
    from qnnbridge._diagnosis import CrashReports
    from qnnbridge._supervision.blame import Quarantine, QuarantineAccount

crashes_app = typer.Typer(help="List and show crash reports: why hosts ended.", rich_markup_mode=None)
Ended = Annotated[
    bool,
    typer.Option(
        "--ended",
        help="Show hosts that were ended on purpose (on_deadline='kill') and programs that are not hosts.",
    ),
]


@crashes_app.callback(invoke_without_command=True)
def crashes(context: typer.Context) -> None:
    """List the crash reports if no subcommand is given."""
    if context.invoked_subcommand is None:
        list_reports()


@crashes_app.command("list")
@command
def list_reports(as_json: AsJson = False, ended: Ended = False) -> None:
    """List the reports, newest first."""
    from qnnbridge_tools import output

    reports = _reports(ended)
    summaries = reports.summaries()
    if as_json:
        output.print_json({"reports": [dataclasses.asdict(summary) for summary in summaries]})
    elif not summaries:
        print(f"No {'' if ended else 'crash '}reports in {output.visible(reports.folder)}.")
    else:
        output.print_table(
            ["id", "when (UTC)", "exit", "phase", "models", "most likely cause"],
            [
                [s.id, s.when[:19].replace("T", " "), s.exit, s.phase, ", ".join(s.models) or "-", s.cause]
                for s in summaries
            ],
        )


@crashes_app.command("show")
@command
def show(
    report_id: Annotated[
        str, typer.Argument(metavar="[ID]", help="A report's id, the beginning of an id, or last.")
    ] = "last",
    as_json: AsJson = False,
    ended: Ended = False,
) -> None:
    """Show a report; by default the newest one."""
    from qnnbridge_tools import output

    reports = _reports(ended)
    if as_json:
        output.print_json(reports.read(report_id))
    else:
        # Escape control characters except line ends, because a crashed process may have printed any.
        print("\n".join(output.visible(line) for line in reports.read_text(report_id).split("\n")).rstrip())


@crashes_app.command("path")
@command
def path() -> None:
    """Print the folder of the reports."""
    print(_reports(ended=False).folder)


def _reports(ended: bool) -> CrashReports:
    from qnnbridge._diagnosis import CrashReports

    return CrashReports().ended if ended else CrashReports()


quarantine_app = typer.Typer(help="List and clear models that kept killing hosts.", rich_markup_mode=None)


@quarantine_app.callback(invoke_without_command=True)
def quarantine(context: typer.Context) -> None:
    """List the models in quarantine if no subcommand is given."""
    if context.invoked_subcommand is None:
        list_models()


@quarantine_app.command("list")
@command
def list_models(as_json: AsJson = False) -> None:
    """List the models in quarantine, newest first."""
    from qnnbridge._supervision.blame import Quarantine
    from qnnbridge_tools import output

    kept = Quarantine()
    accounts = kept.accounts()
    if as_json:
        output.print_json(
            {
                "accounts": [
                    {**dataclasses.asdict(account), "until": kept.until(account).isoformat(timespec="seconds")}
                    for account in accounts
                ]
            }
        )
    elif not accounts:
        print("No model is in quarantine.")
    else:
        headers = ["id", "model", "phase", "deaths", "last exit", "until (UTC)", "versions", "last report"]
        output.print_table(headers, [_row(kept, account) for account in accounts])


@quarantine_app.command("clear")
@command
def clear(
    account_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The model's id, the beginning of its id, or its name.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All models.")] = False,
) -> None:
    """Remove a model, or all of them, from quarantine."""
    from qnnbridge._supervision.blame import Quarantine

    # Require either an id or --all, not both.
    if everything == bool(account_id):
        raise OptionError("No model to clear is given.", fix="Give an id or a name from the list, or --all.")
    kept = Quarantine()
    wanted = kept.accounts() if account_id is None else [_only_match(kept.accounts(), account_id)]
    for account in wanted:
        kept.clear(account.id)
    left = {
        account.id for account in Quarantine().accounts()
    }  # read the file again, because clearing may have failed to write it
    if any(account.id in left for account in wanted):
        raise BridgeError(
            "The quarantine could not be cleared.",
            cause=f"{kept.path} cannot be written.",
            fix="Make the file and its folder writable, or delete the file.",
        )
    names = dict.fromkeys(_name(account) for account in wanted)
    print(f"Cleared: {visible(', '.join(names))}." if names else "No model was in quarantine.")


def _only_match(accounts: list[QuarantineAccount], account_id: str) -> QuarantineAccount:
    """Return the only entry of the quarantine that matches.

    Several entries of the same model count as one match, because `clear` removes all of them.
    """
    found = [one for one in accounts if one.model == account_id or one.id.startswith(account_id)]
    # Compare model and options: a model may be in quarantine with one set of options and not with another.
    if len({(account.fingerprint, account.options_hash) for account in found}) != 1:
        known = ", ".join(f"{account.id} ({_name(account)})" for account in found or accounts)
        raise OptionError(
            f"{'No model' if not found else 'More than one model'} in quarantine has the id or name {account_id}.",
            fix=f"Give one of these ids: {known}." if known else "The quarantine is empty.",
        )
    return found[0]


def _row(kept: Quarantine, account: QuarantineAccount) -> list[str]:
    last = account.deaths[-1] if account.deaths else None
    return [
        account.id,
        _name(account),
        account.phase,
        str(len(account.deaths)),
        (last.exit if last else "") or "-",
        f"{kept.until(account):%Y-%m-%d %H:%M}",
        account.versions or "-",
        (last.report if last else None) or "-",
    ]


def _name(account: QuarantineAccount) -> str:
    return account.model or account.fingerprint[:12]


# Do not let click read the codes -11 and -1073740791 as options.
COMMAND_SETTINGS = {"explain": {"context_settings": {"ignore_unknown_options": True}}}


@command
def explain(
    codes: Annotated[
        tuple[str, ...], typer.Argument(metavar="CODE...", help="3221226505, 0xC0000409, -1073740791, 127, -11 ...")
    ],
    as_json: AsJson = False,
) -> None:
    """Explain an exit code."""
    from qnnbridge_tools import output
    from qnnbridge_tools.explanations import explain_code

    explanations = [explain_code(code) for code in codes]
    if as_json:
        output.print_json({"explanations": [explanation.to_json() for explanation in explanations]})
    else:
        print("\n\n".join(explanation.to_text() for explanation in explanations))
