"""The options of `setup-host`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import typer

from qnnbridge_tools.command_line import Read
from qnnbridge_tools.options import Chip, SystemSdk


@dataclasses.dataclass(frozen=True, slots=True)
class NpuTraits:
    """QNN version of the NPU's driver and its Hexagon version; ``None`` if unknown."""

    system_sdk: str | None = None
    hexagon: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DriverOptions:
    """What stands for the traits of this computer's driver."""

    system_sdk: SystemSdk = None
    chip: Chip = None

    def traits(self) -> NpuTraits:
        """The given values, else those of this computer's driver."""
        from qnnbridge_tools.setup_host import this_machine
        from qnnbridge_tools.versions.fitness import read_chip

        sdk, hexagon = this_machine.driver_facts()
        return NpuTraits(
            sdk if self.system_sdk is None else this_machine.checked_sdk(self.system_sdk),
            hexagon if self.chip is None else read_chip(self.chip),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class SetupOptions:
    """The command line, read; ``None`` for absent options."""

    python: Annotated[
        str | None,
        typer.Option(
            metavar="PYTHON", help="Interpreter: a path, a tag of the py launcher, 3.13; else the best one."
        ),
    ] = None
    version: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Version of onnxruntime-qnn. Default: the newest that works here."),
    ] = None
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="FOLDER", help="Folder of the new environment.")
    ] = None
    source: Annotated[
        Path | None, typer.Option("--from", metavar="PATH", help="Wheel, sdist or checkout of qnnbridge.")
    ] = None
    facts: Annotated[NpuTraits, Read(DriverOptions.traits, DriverOptions)] = dataclasses.field(
        default_factory=NpuTraits
    )
    write_config: Annotated[
        bool, typer.Option("--config/--no-config", help="Enter the new host in the configuration file.")
    ] = True
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an environment or setting that is there already.")
    ] = False
    force: Annotated[bool, typer.Option("--force", help="With --version: install it even if it does not fit.")] = (
        False
    )
    engine: Annotated[
        Literal["wheel", "windowsml", "folder"],
        typer.Option("--engine", help="Source of QNN: onnxruntime-qnn, or the catalogue of Windows."),
    ] = "wheel"
    ep_path: Annotated[
        Path | None, typer.Option("--ep-path", metavar="PATH", help="Folder (or file) of a provider of your own.")
    ] = None
    download: Annotated[
        bool, typer.Option("--download", help="With --engine windowsml: have Windows download its provider.")
    ] = False
