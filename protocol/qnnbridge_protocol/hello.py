"""HELLO: what each side says of itself first, and what the two agree on.

Nothing heavy is imported before it, so that a version conflict costs a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from qnnbridge_protocol._version import __version__
from qnnbridge_protocol.errors import HandshakeFailed, VersionMismatch
from qnnbridge_protocol.frames import desync
from qnnbridge_protocol.limits import MIN_HEADER_BYTES, Limits
from qnnbridge_protocol.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Lowest and highest version of the operations that this build speaks. Only additions inside a version.
API_VERSIONS = (2, 2)

# Further streams beside the connection, and memory that both sides have mapped: not on every system.
SHARING_FEATURES: frozenset[str] = frozenset({"fast1", "shm1"})

# The host calls functions of the application. A daemon does not: one that hangs would keep others waiting.
CALL_BACK_FEATURE = "callback"

# Named abilities. What both sides have is used; an unknown name is ignored.
FEATURES: frozenset[str] = frozenset({"phase", "cancel", CALL_BACK_FEATURE}) | SHARING_FEATURES

# Named by a daemon and its clients only: releases that are far apart do not meet there.
DAEMON_FEATURE = "daemon"


class Hello(NamedTuple):
    """One side's introduction.

    machine: of the process, from its own executable (``platform.machine()`` lies under emulation).
    pid: the real one; a virtual environment's launcher on Windows has another.
    system: whose process numbers it sees (`drivers.processes`); empty if it does not say.
    versions: of onnxruntime, onnxruntime_qnn, qnn_sdk and so on, as far as known without importing them.
    """

    api: tuple[int, int] = API_VERSIONS
    features: frozenset[str] = FEATURES
    limits: Limits = Limits()
    qnnbridge: str = __version__
    pid: int = 0
    machine: str = ""
    python: str = ""
    executable: str = ""
    platform: str = ""
    system: str = ""
    versions: Mapping[str, str] = MappingProxyType({})

    def to_wire(self) -> dict[str, Any]:
        return {
            "api": list(self.api),
            "features": sorted(self.features),
            "limits": self.limits.to_wire(),
            "qnnbridge": self.qnnbridge,
            "pid": self.pid,
            "machine": self.machine,
            "python": self.python,
            "executable": self.executable,
            "platform": self.platform,
            "system": self.system,
            "versions": dict(self.versions),
        }

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Hello:
        """A peer's HELLO. Raises `ProtocolDesync` when it is none."""
        api, features, versions = data.get("api"), data.get("features", []), data.get("versions", {})
        if not (type(api) is list and len(api) == 2 and all(type(v) is int for v in api) and api[0] <= api[1]):
            raise desync(f"HELLO without a version range ({api!r})")
        if type(features) is not list or type(versions) is not dict or type(data.get("limits")) is not dict:
            raise desync("HELLO with fields of wrong types")
        try:
            limits = Limits.from_wire(data["limits"])
        except ValueError as error:
            raise desync(f"HELLO with bad limits: {error}") from None
        pid = data.get("pid", 0)
        return cls(
            api=(api[0], api[1]),
            features=frozenset(str(f) for f in features),
            limits=limits,
            qnnbridge=str(data.get("qnnbridge", "?")),
            pid=pid if type(pid) is int else 0,
            machine=str(data.get("machine", "")),
            python=str(data.get("python", "")),
            executable=str(data.get("executable", "")),
            platform=str(data.get("platform", "")),
            system=str(data.get("system", "")),
            versions={str(k): str(v) for k, v in versions.items()},
        )


class Agreement(NamedTuple):
    """What both sides keep to from HELLO on."""

    api: int
    features: frozenset[str]
    limits: Limits


def negotiate(client: Hello, host: Hello) -> Agreement:
    """Highest common version, common features, smaller limits.

    Raises:
        VersionMismatch: naming both sides.
        HandshakeFailed: a limit of one side is so small that it could not be told of an error.
    """
    low, high = max(client.api[0], host.api[0]), min(client.api[1], host.api[1])
    if low > high:
        older = "application side" if client.api[1] < host.api[0] else "host"
        raise VersionMismatch(
            f"The application side (qnnbridge {client.qnnbridge}, protocol {client.api[0]} to {client.api[1]}) "
            f"and the host (qnnbridge {host.qnnbridge}, protocol {host.api[0]} to {host.api[1]}) "
            "have no protocol version in common.",
            fix=f"Upgrade the {older}: python -m pip install --upgrade qnnbridge (with its own Python).",
            details={"client": client.qnnbridge, "host": host.qnnbridge, "older": older},
        )
    if DAEMON_FEATURE in client.features & host.features:
        check_releases(client.qnnbridge, host.qnnbridge, host.executable)
    limits = client.limits.common(host.limits)
    if limits.max_header < MIN_HEADER_BYTES:
        side = "application side" if client.limits.max_header == limits.max_header else "host"
        raise HandshakeFailed(
            f"The {side} takes headers of at most {limits.max_header} bytes; {MIN_HEADER_BYTES} are the least with "
            "which errors can be told.",
            fix=f"Set max_header to {MIN_HEADER_BYTES} or more, or leave it at its default.",
            details={"max_header": limits.max_header, "least": MIN_HEADER_BYTES},
        )
    features = client.features & host.features
    # What is shared is named by the number of a process.
    return Agreement(high, features - SHARING_FEATURES if elsewhere(client, host) else features, limits)


def elsewhere(one: Hello, other: Hello) -> bool:
    """Whether process numbers of one side mean nothing to the other: Wine, a container, another machine."""
    return bool(one.system and other.system and one.system != other.system)


# A daemon serves applications with environments of their own, each upgraded on a day of its own: the rule is
# simple, and both sides apply it.
MINORS_APART = 1


def check_releases(client: str, daemon: str, daemon_python: str = "") -> None:
    """Raises `VersionMismatch` naming both releases and what to upgrade.

    A text that is no release number passes: the range of protocol versions decides then.
    """
    ours, theirs = _release(client), _release(daemon)
    if ours is None or theirs is None:
        return
    if ours[0] == theirs[0] and abs(ours[1] - theirs[1]) <= MINORS_APART:
        return
    upgrade = "pip install --upgrade qnnbridge"
    if ours < theirs:
        older, fix = "application side", f"Upgrade the application side: python -m {upgrade} (with its own Python)."
    else:
        older = "daemon"
        python = daemon_python or "python"
        fix = f"Upgrade the daemon: {python} -m {upgrade}   Then: qnnbridge host restart --daemon"
    raise VersionMismatch(
        f"The application side has qnnbridge {client}, the daemon has qnnbridge {daemon}: they are more than one "
        "minor version apart.",
        fix=fix,
        details={"client": client, "daemon": daemon, "older": older},
    )


def _release(version: str) -> tuple[int, int] | None:
    # Without `re`: the host imports this before it says HELLO.
    major, _, rest = version.partition(".")
    minor = rest[: len(rest) - len(rest.lstrip("0123456789"))]  # 0 of 0rc1
    return (int(major), int(minor)) if major.isdecimal() and minor else None
