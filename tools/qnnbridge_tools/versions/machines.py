"""The machine that a release has to fit: what of it matters, and how it is found out or named."""

from __future__ import annotations

import dataclasses
import platform as python_platform
import re
import sys
from typing import Final, Literal

from qnnbridge_host.model.chips import CHIPS, chip_named, chip_of_processor
from qnnbridge_protocol.errors import OptionError

Platform = Literal["win_arm64", "win_amd64", "win32", "linux_x86_64", "linux_aarch64"]

# What an interpreter of that platform was built for.
PLATFORM_MACHINES: Final[dict[Platform, str]] = {
    "win_arm64": "ARM64",
    "win_amd64": "x64",
    "win32": "x86",
    "linux_x86_64": "x86_64",
    "linux_aarch64": "aarch64",
}

_OTHER_NAMES: Final = {"arm64": "win_arm64", "aarch64": "linux_aarch64", "x64": "win_amd64", "amd64": "win_amd64"}

# The Hexagon versions that chips have which QNN is for.
HEXAGONS: Final = tuple(sorted({chip.arch for chip in CHIPS}))


@dataclasses.dataclass(frozen=True, slots=True)
class HostMachine:
    """The machine of a host. ``None`` means unknown; no release is refused for an unknown value.

    Args:
        platform: Of the interpreter that would run the host.
        computer: What the computer really is, as `qnnbridge._launch.computer_machine` names it.
        python: Of that interpreter.
        system_sdk: The QNN version of the installed NPU driver, as in "2.40".
        hexagon: Of the NPU, 73 for V73.
        ort: The version of onnxruntime that it shall work with.
        glibc: Of a Linux computer.
    """

    platform: Platform
    computer: str | None = None
    python: tuple[int, int] | None = None
    system_sdk: str | None = None
    hexagon: int | None = None
    ort: str | None = None
    glibc: tuple[int, int] | None = None

    @classmethod
    def current(cls) -> HostMachine:
        """This computer, with the running interpreter as the host; on Windows on Arm with an ARM64 one.

        There the host's interpreter is another one than the application's, and its version is not known here.
        """
        from qnnbridge._launch.installed import computer_machine, process_machine

        process, computer = process_machine(), computer_machine()
        # The host will be an ARM64 Python, whatever this process is.
        if computer == "ARM64" and process != "ARM64":
            return cls("win_arm64", computer)
        return cls(platform_of(process), computer, sys.version_info[:2], glibc=_glibc())

    @property
    def has_npu(self) -> bool:
        """Whether a computer of this kind may have an NPU of Qualcomm's."""
        # An unknown computer is taken for what its interpreter was built for.
        return (self.computer or PLATFORM_MACHINES[self.platform]) in ("ARM64", "aarch64")

    @property
    def is_emulated(self) -> bool:
        """An x64 interpreter on an Arm computer with Windows."""
        return self.platform == "win_amd64" and self.computer == "ARM64"


def platform_of(machine: str) -> Platform:
    """The platform of an interpreter of this machine type. Raises `OptionError` for one without wheels."""
    for platform, known in PLATFORM_MACHINES.items():
        if machine == known:
            return platform
    raise OptionError(
        f"QNN does not exist for machines of type {machine!r}.",
        fix=f"Name one of the platforms {', '.join(PLATFORM_MACHINES)}.",
    )


def read_platform(text: str) -> Platform:
    """A platform by its name; "win-arm64", "manylinux_2_35_x86_64" and "arm64" are understood too."""
    name = text.strip().lower().replace("-", "_")
    name = re.sub(r"^manylinux(?:_\d+_\d+|\d+)_", "linux_", name)
    name = _OTHER_NAMES.get(name, name)
    for platform in PLATFORM_MACHINES:
        if name == platform:
            return platform
    raise OptionError(f"There is no platform {text!r}.", fix=f"One of: {', '.join(PLATFORM_MACHINES)}.")


def read_chip(text: str) -> int:
    """The Hexagon version of "V73" or "73", of a part such as SC8380XP, or of a name in shops such as "X Elite"."""
    found = re.fullmatch(r"(?:hexagon\s*)?v?(\d{2})", text.strip().lower())
    if found and int(found[1]) in HEXAGONS:
        return int(found[1])
    chip = chip_named(text) or chip_of_processor(text)
    known = {chip.arch} if chip else _archs_by_product(text)
    if len(known) == 1:
        return known.pop()
    names = ", ".join(chip.product or chip.name for chip in CHIPS if chip.name.startswith("SC"))
    raise OptionError(
        f"{text!r} is not {'one' if known else 'a known'} chip.",
        fix=f"Give the Hexagon version ({', '.join(f'V{arch}' for arch in HEXAGONS)}), or a chip, such as {names}.",
    )


def _archs_by_product(text: str) -> set[int]:
    words = text.strip().lower().replace("snapdragon", "").strip()
    exact = {chip.arch for chip in CHIPS if chip.product.lower() == f"snapdragon {words}"}
    # "8 Gen 1" is not "8+ Gen 1".
    pattern = re.compile(rf"\b{re.escape(words)}\b(?!\+)")
    return exact or {chip.arch for chip in CHIPS if words and pattern.search(chip.product.lower())}


def read_python(text: str) -> tuple[int, int]:
    """ "3.13", "3.13.2", "313" or "cp313"."""
    found = re.fullmatch(r"(?:cp)?(3)\.?(\d{1,2})(?:\.\d+.*)?", text.strip())
    if found is None:
        raise OptionError(f"{text!r} is not a version of Python.", fix="For example 3.13.")
    return int(found[1]), int(found[2])


def _glibc() -> tuple[int, int] | None:
    name, version = python_platform.libc_ver()
    found = re.match(r"(\d+)\.(\d+)", version) if name == "glibc" else None
    return (int(found[1]), int(found[2])) if found else None
