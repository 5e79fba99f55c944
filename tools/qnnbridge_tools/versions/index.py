"""Asks the package index for onnxruntime-qnn, through pip and with pip's own configuration.

pip knows the index, its certificates, proxies and passwords, so nothing here does. Each call is one pip process.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from qnnbridge_protocol.errors import BridgeError

PACKAGE = "onnxruntime-qnn"
CALL_TIMEOUT_S = 900.0
PIP_RETRIES = "2"
SHOWN_LINES = 8

_NETWORK_WORDS = (
    "retrying (",
    "could not fetch url",
    "connectionerror",
    "timed out",
    "name resolution",
    "proxyerror",
)


class IndexUnreachable(BridgeError):
    """pip could not ask its index; says nothing about what is on it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """What a wheel has to be for: a family of platforms, and a Python version such as "3.13"."""

    family: str
    python: str

    @property
    def platforms(self) -> tuple[str, ...]:
        return FAMILIES[self.family]


def _linux(machine: str) -> tuple[str, ...]:
    # pip takes the tags by their letters: each glibc that a wheel may name has to be said.
    return (f"linux_{machine}", *(f"manylinux_2_{minor}_{machine}" for minor in range(17, 60)))


FAMILIES: dict[str, tuple[str, ...]] = {
    "win_arm64": ("win_arm64",),
    "win_amd64": ("win_amd64",),
    "linux_x86_64": _linux("x86_64"),
    "linux_aarch64": _linux("aarch64"),
}
PYTHONS = tuple(f"3.{minor}" for minor in range(8, 17))


def family_of(platform: str) -> str:
    """The family of a wheel's platform tag."""
    return next(family for family, platforms in FAMILIES.items() if platform in platforms)


def published(target: Target) -> list[str]:
    """The versions that have a wheel for this target, development builds included; newest first."""
    result = _pip("index", "versions", PACKAGE, "--pre", *_selection(target))
    found = re.search(r"^Available versions: (.*)$", result.stdout, re.MULTILINE)
    if found:
        return [version.strip() for version in found[1].split(",")]
    if "no matching distribution" in result.stderr.lower() and not is_network_trouble(result.stderr):
        return []
    raise unreachable(result.stderr)


def download(version: str, target: Target, folder: Path) -> Path:
    """Put the wheel of this version into an empty folder, unpacked nowhere and with nothing it depends on."""
    where = ("--no-deps", "--no-cache-dir", "--dest", str(folder))
    result = _pip("download", f"{PACKAGE}=={version}", *where, *_selection(target))
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        if is_network_trouble(result.stderr):
            raise unreachable(result.stderr)
        raise BridgeError(
            f"pip did not get {PACKAGE} {version} for {target.family}, Python {target.python}.",
            evidence=_last_lines(result.stderr),
        )
    return wheels[0]


def _selection(target: Target) -> list[str]:
    platforms = [word for platform in target.platforms for word in ("--platform", platform)]
    return [*platforms, "--python-version", target.python, "--only-binary", ":all:"]


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", PIP_RETRIES, *arguments]
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        timeout=CALL_TIMEOUT_S,
        check=False,
    )


def is_network_trouble(text: str) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in _NETWORK_WORDS)


def unreachable(text: str) -> IndexUnreachable:
    return IndexUnreachable(
        "The package index cannot be reached.",
        cause="pip got no answer from the index that it is configured for.",
        fix="Check the network, and what `pip config list` names as index and proxy.",
        evidence=[line for line in text.splitlines() if is_network_trouble(line)][-SHOWN_LINES:]
        or _last_lines(text),
    )


def _last_lines(text: str) -> Sequence[str]:
    return [line for line in text.splitlines() if line.strip()][-SHOWN_LINES:]
