"""HELLO: what each side says of itself first, and what the two agree on.

Nothing heavy is imported before it, so that a version conflict costs a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from qnnbridge_protocol._version import __version__
from qnnbridge_protocol.errors import HandshakeFailed, HostStartFailed, VersionMismatch, from_wire
from qnnbridge_protocol.frames import WIRE_VERSION, desync
from qnnbridge_protocol.limits import MIN_HEADER_BYTES, Limits
from qnnbridge_protocol.process_names import is_frozen
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

# What a client asks of a daemon whose version does not match its own: to end if it serves nobody and is the older
# one, since the client starts another in its place; to end in any case. If it does, `LEAVING` in the details of the
# error is the feature.
MAKE_WAY_FEATURE = "make-way"
LEAVE_FEATURE = "leave"
LEAVING = "leaving"

# Longest text that can be the version of a release.
_MAX_VERSION_CHARACTERS = 64


class Hello(NamedTuple):
    """One side's introduction.

    wire: version of the frames, which stands in the prefix of the HELLO.
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
    wire: int = WIRE_VERSION

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
    def from_wire(cls, data: Mapping[str, Any], wire: int = WIRE_VERSION) -> Hello:
        """A peer's HELLO. Raises `ProtocolDesync` when it is none.

        Of one with another wire version only what names the side is read, which every version keeps.
        """
        if wire != WIRE_VERSION:
            named = data.get("features")
            return cls(
                features=frozenset(map(str, named)) if type(named) is list else frozenset(),
                qnnbridge=_version_text(data.get("qnnbridge", "?")),
                executable=str(data.get("executable", "")),
                wire=wire,
            )
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
            qnnbridge=_version_text(data.get("qnnbridge", "?")),
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
        HandshakeFailed: a limit of one side is so small that no error could be sent to it, or a side of a
            daemon's connection names no release.
    """
    if client.wire != host.wire:
        raise _mismatch(client, host, "wire version {}", (client.wire, host.wire), client.wire < host.wire)
    low, high = max(client.api[0], host.api[0]), min(client.api[1], host.api[1])
    if low > high:
        ranges = tuple(f"{side.api[0]} to {side.api[1]}" for side in (client, host))
        raise _mismatch(client, host, "protocol {}", ranges, client.api[1] < host.api[0])
    if DAEMON_FEATURE in host.features:
        _release("application side", client.qnnbridge)
        _release("daemon", host.qnnbridge)
        if DAEMON_FEATURE in client.features:
            check_releases(client.qnnbridge, host.qnnbridge, host.executable)
    limits = client.limits.common(host.limits)
    if limits.max_header < MIN_HEADER_BYTES:
        side = "application side" if client.limits.max_header == limits.max_header else "host"
        raise HandshakeFailed(
            f"The {side} takes headers of at most {limits.max_header} bytes; {MIN_HEADER_BYTES} are the least with "
            "which errors can be sent.",
            fix=f"Set max_header to {MIN_HEADER_BYTES} or more, or leave it at its default.",
            details={"max_header": limits.max_header, "least": MIN_HEADER_BYTES},
        )
    features = client.features & host.features
    # What is shared is named by the number of a process.
    return Agreement(high, features - SHARING_FEATURES if elsewhere(client, host) else features, limits)


def elsewhere(one: Hello, other: Hello) -> bool:
    """Whether process numbers of one side mean nothing to the other: Wine, a container, another machine."""
    return bool(one.system and other.system and one.system != other.system)


def refusal(header: Mapping[str, Any]) -> HostStartFailed:
    """The error in a HELLO_ERR; `HandshakeFailed` for one that says nothing of the kind."""
    described = header.get("error")
    error = from_wire(described) if isinstance(described, Mapping) else None
    if isinstance(error, HostStartFailed):
        return error
    return HandshakeFailed(
        "The host refuses this application and gives no reason that could be read.",
        cause=error.message if error is not None and error.message else None,
        fix="Install the same qnnbridge version on both sides.",
    )


def _mismatch(
    client: Hello, host: Hello, what: str, versions: tuple[object, ...], client_is_older: bool
) -> VersionMismatch:
    daemon = DAEMON_FEATURE in host.features
    name = "daemon" if daemon else "host"
    ours, theirs = (what.format(version) for version in versions)
    return VersionMismatch(
        f"The application side (qnnbridge {client.qnnbridge}, {ours}) and the {name} (qnnbridge {host.qnnbridge}, "
        f"{theirs}) have no protocol version in common.",
        fix=_upgrade(name, client_is_older, host.executable),
        details={
            "client": client.qnnbridge,
            name: host.qnnbridge,
            "older": "application side" if client_is_older else name,
        },
    )


def _upgrade(name: str, client_is_older: bool, python: str) -> str:
    upgrade = "-m pip install --upgrade qnnbridge"
    if client_is_older:
        if is_frozen():
            return f"This application has to be built again with the qnnbridge of the {name}."
        return f"Upgrade the application side: python {upgrade} (with its own Python)."
    if name == "daemon":
        return f"Upgrade the daemon: {python or 'python'} {upgrade}   Then: qnnbridge host restart --daemon"
    return f"Upgrade the host: python {upgrade} (with its own Python)."


# A daemon serves applications with environments of their own, each upgraded on a day of its own: the rule is
# simple, and both sides apply it.
MINORS_APART = 1


def check_releases(client: str, daemon: str, daemon_python: str = "") -> None:
    """Raises `VersionMismatch` naming both releases and what to upgrade, `HandshakeFailed` for a text that is no
    release."""
    ours, theirs = _release("application side", client), _release("daemon", daemon)
    if ours[0] == theirs[0] and abs(ours[1] - theirs[1]) <= MINORS_APART:
        return
    client_is_older = ours < theirs
    raise VersionMismatch(
        f"The application side has qnnbridge {client}, the daemon has qnnbridge {daemon}: they are more than one "
        "minor version apart.",
        fix=_upgrade("daemon", client_is_older, daemon_python),
        details={
            "client": client,
            "daemon": daemon,
            "older": "application side" if client_is_older else "daemon",
        },
    )


def _version_text(version: object) -> str:
    """The version of a peer, as it may be shown in a terminal."""
    text = version if type(version) is str else f"<{type(version).__name__}>"
    short = text[:_MAX_VERSION_CHARACTERS]
    return text if short == text and text.isprintable() else f"{short!r} ..."


def _release(name: str, version: str) -> tuple[int, int]:
    # Without `re`: the host imports this before it says HELLO.
    major, _, rest = version.partition(".")
    minor = rest[: len(rest) - len(rest.lstrip("0123456789"))]  # 0 of 0rc1
    shown = len(version) <= _MAX_VERSION_CHARACTERS and version.isascii() and version.isprintable()
    if shown and major.isdecimal() and minor:
        return int(major), int(minor)
    raise HandshakeFailed(
        f"The {name} says that its version of qnnbridge is {version!r}, which is none.",
        cause="It is not qnnbridge, or its installation is damaged.",
        fix=f"Install qnnbridge again on the {name}: python -m pip install --force-reinstall qnnbridge",
    )
