"""`qnnbridge explain CODE`: says in words what an exit code of a host process means."""

from __future__ import annotations

from typing import Annotated

import typer

from qnnbridge_tools import reporting

# -11 and -1073740791 are codes, not options.
CONTEXT_SETTINGS = {"ignore_unknown_options": True}


def explain(
    codes: Annotated[
        list[str], typer.Argument(metavar="CODE...", help="3221226505, 0xC0000409, -1073740791, 127, -11 ...")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say in words what an exit code means."""
    with reporting.work(as_json=as_json):
        from qnnbridge._diagnosis.explain_code import explain_code
        from qnnbridge_tools import output

        explanations = [explain_code(code) for code in codes]
        if as_json:
            output.print_json({"explanations": [explanation.to_json() for explanation in explanations]})
        else:
            print("\n\n".join(explanation.to_text() for explanation in explanations))
