"""`qnnbridge versions`: the onnxruntime-qnn releases, and which of them work on a machine."""

from __future__ import annotations

from typing import Annotated

import typer

from qnnbridge_tools import reporting
from qnnbridge_tools.options import AsJson

SystemSdk = Annotated[
    str | None, typer.Option(metavar="VERSION", help="QNN version of the NPU driver, such as 2.40; else found.")
]
Chip = Annotated[str | None, typer.Option(metavar="CHIP", help='V73, or a chip such as "X Elite"; else found.')]


def versions(
    system_sdk: SystemSdk = None,
    chip: Chip = None,
    python: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Python of the host, such as 3.13; else found.")
    ] = None,
    platform: Annotated[
        str | None, typer.Option(help="win_arm64, win_amd64, linux_x86_64 or linux_aarch64; else this one.")
    ] = None,
    ort: Annotated[
        str | None, typer.Option(metavar="VERSION", help="The onnxruntime that it shall work with; else any.")
    ] = None,
    working: Annotated[bool, typer.Option("--working", help="Only what works.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the releases of onnxruntime-qnn, and say which work here and why the others do not."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import output
        from qnnbridge_tools.versions import here, view
        from qnnbridge_tools.versions.fitness import judge

        machine = here.machine_of(here.MachineOptions(system_sdk, chip, python, platform, ort))
        judged = judge(machine)
        shown = [one for one in judged if one.verdict != "refused"] if working else judged
        if as_json:
            output.print_json(view.document(machine, judged, shown))
        else:
            view.print_versions(machine, judged, shown)
