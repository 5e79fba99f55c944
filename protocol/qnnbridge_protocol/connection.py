"""One connection without I/O: the exchange of HELLO, the agreement on version and features, the conversion of bytes
to frames, and the rules about which side may send which frame in which state.

No large module is imported before HELLO, so that a version conflict is reported after a tenth of a second.

The tables above the class `Connection` contain the rules: for each state, the kinds of frames that may be sent and
received, and the next state. All other frames are forbidden: sending such a frame is a bug of this side
(`RuntimeError`), receiving it is a bug of the peer (`ProtocolDesync`).

A client numbers its requests, cancels and pings 1, 2, 3 ... and never reuses a number. Each gets exactly one
answer: a REQUEST gets a REPLY or ERROR, a CANCEL a REPLY, a PING a PONG. Before the answer to a REQUEST the host
may send PHASE, EVENT and CALL_BACK frames. A CALL_BACK is a request to the client; the client answers it with
RETURN before the host may send the next CALL_BACK of the same REQUEST.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

from qnnbridge_protocol import __version__
from qnnbridge_protocol.errors import HandshakeFailed, HostStartFailed, VersionMismatch, desync, from_wire
from qnnbridge_protocol.frames import WIRE_VERSION, Frame, FrameReader, Kind, write_frame
from qnnbridge_protocol.limits import MIN_HEADER_BYTES, Limits
from qnnbridge_protocol.process_names import is_frozen
from qnnbridge_protocol.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from qnnbridge_protocol.specs import HostInfo


# --- HELLO: the introduction of each side ----------------------------------------------------------------

# Lowest and highest supported version of the operations. Changes within a version only add operations and fields.
API_VERSIONS = (2, 2)

# Fast channels in addition to the connection, and shared memory. They are not available on every system.
SHARING_FEATURES: frozenset[str] = frozenset({"fast1", "shm1"})

# The host can call functions of the application. A daemon cannot, because a function that hangs would make other
# applications wait.
CALL_BACK_FEATURE = "callback"

# Optional features. A feature is used if both sides support it; an unknown feature is ignored.
FEATURES: frozenset[str] = frozenset({"phase", "cancel", CALL_BACK_FEATURE}) | SHARING_FEATURES

# Feature of a daemon and its clients. With it, each side refuses the other if their releases are too far apart.
DAEMON_FEATURE = "daemon"

# Features by which a client asks a daemon of an incompatible version to exit. MAKE_WAY: exit if the daemon is older
# and has no other clients; the client then starts a newer daemon. LEAVE: exit in any case. A daemon that exits puts
# the feature into the details of its HELLO_ERR, under the key `LEAVING`.
MAKE_WAY_FEATURE = "make-way"
LEAVE_FEATURE = "leave"
LEAVING = "leaving"

# Maximum length of a release's version string.
_MAX_VERSION_CHARACTERS = 64


class Hello(NamedTuple):
    """Contents of the HELLO message of one side.

    Attributes:
        wire: version of the frames, from the prefix of the HELLO.
        machine: machine type from the header of the process's executable (``platform.machine()`` is wrong under
            emulation).
        pid: id of the process itself. On Windows the launcher of a virtual environment has a different id.
        system: system on which process ids are valid (`process_names.this_system`); '' if unknown.
        versions: versions of onnxruntime, onnxruntime_qnn, qnn_sdk and so on, if known without importing them.
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
        plain: dict[str, Any] = self._asdict()
        del plain["wire"]  # the prefix of the frame contains the version
        return {
            **plain,
            "api": list(self.api),
            "features": sorted(self.features),
            "limits": self.limits.to_wire(),
            "versions": dict(self.versions),
        }

    def info(self, answer: Mapping[str, Any], generation: int = 0, startup_seconds: float = 0.0) -> HostInfo:
        """Combine the host's HELLO and its response to ``host.info`` into a description of the host for the
        application."""
        # imported here because the exchange of HELLO does not need the module
        from qnnbridge_protocol.specs import HostInfo

        return HostInfo(
            pid=self.pid,
            machine=self.machine,
            python=self.python,
            executable=self.executable,
            qnnbridge=self.qnnbridge,
            platform=self.platform,
            generation=generation,
            startup_seconds=startup_seconds,
            versions={**self.versions, **answer.get("versions", {})},
            providers=tuple(answer.get("providers", ())),
            devices=tuple(answer.get("devices", ())),
            simulator=answer.get("simulator"),
            build=str(answer.get("build", "")),
            ort_folder=str(answer.get("ort_folder", "")),
            library_folder=answer.get("library_folder"),
            qnn_source=answer.get("qnn_source") or {},
        )

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], wire: int = WIRE_VERSION) -> Hello:
        """Convert a peer's HELLO. Raise `ProtocolDesync` if it is invalid.

        If the wire version differs, read only the fields that identify the side, which all versions have.
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
            raise desync(f"the HELLO has no valid version range ({api!r})")
        if type(features) is not list or type(versions) is not dict or type(data.get("limits")) is not dict:
            raise desync("the HELLO has fields of wrong types")
        try:
            limits = Limits.from_wire(data["limits"])
        except ValueError as error:
            raise desync(f"the HELLO has invalid limits: {error}") from None
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
    """Result of the negotiation, valid after HELLO."""

    api: int
    features: frozenset[str]
    limits: Limits


def negotiate(client: Hello, host: Hello) -> Agreement:
    """Return the highest common version, the common features and the smaller limits.

    Raises:
        VersionMismatch: there is no common version. The error contains the versions of both sides.
        HandshakeFailed: the limit of one side is too small for error messages, or the version of a daemon or
            its client is invalid.
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
            f"The {side} accepts headers of at most {limits.max_header} bytes; at least {MIN_HEADER_BYTES} are "
            "needed to send errors.",
            fix=f"Set max_header to {MIN_HEADER_BYTES} or more, or leave it at its default.",
            details={"max_header": limits.max_header, "least": MIN_HEADER_BYTES},
        )
    features = client.features & host.features
    # Sharing memory needs process ids that are valid on both sides.
    return Agreement(high, features - SHARING_FEATURES if elsewhere(client, host) else features, limits)


def elsewhere(one: Hello, other: Hello) -> bool:
    """Return whether process ids of one side are invalid on the other side (Wine, a container, another machine)."""
    return bool(one.system and other.system and one.system != other.system)


def refusal(header: Mapping[str, Any]) -> HostStartFailed:
    """Return the error that a HELLO_ERR frame contains; `HandshakeFailed` if it contains no error."""
    described = header.get("error")
    error = from_wire(described) if isinstance(described, Mapping) else None
    if isinstance(error, HostStartFailed):
        return error
    return HandshakeFailed(
        "The host refused this application, and its reason cannot be read.",
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
    # imported here because the host imports this module before it sends HELLO
    from qnnbridge_protocol.installing import install_command

    daemon = name == "daemon"
    upgrade = install_command(
        python=(python if daemon and not client_is_older else "") or "python", options="--upgrade"
    )
    if client_is_older:
        if is_frozen():
            return f"Build this application again with the qnnbridge of the {name}."
        return f"Upgrade the application side, with its own Python: {upgrade}"
    if daemon:
        return f"Upgrade the daemon: {upgrade}   Then: qnnbridge host restart --daemon"
    if is_frozen():
        return f"Upgrade the host that the application is shipped with, with the host's own Python: {upgrade}"
    return f"Upgrade the host: qnnbridge setup --upgrade. By hand, with the host's own Python: {upgrade}"


# Greatest difference between the minor versions of a daemon and its clients. It is not 0, because the clients run
# in separate environments, which are upgraded at different times.
MINORS_APART = 1


def check_releases(client: str, daemon: str, daemon_python: str = "") -> None:
    """Check that the releases are compatible.

    Raises:
        VersionMismatch: the releases are too far apart. The error contains both versions and the fix.
        HandshakeFailed: one of the versions is invalid.
    """
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
    """Return the version of a peer with characters that are safe to show in a terminal."""
    text = version if type(version) is str else f"<{type(version).__name__}>"
    short = text[:_MAX_VERSION_CHARACTERS]
    return text if short == text and text.isprintable() else f"{short!r} ..."


def _release(name: str, version: str) -> tuple[int, int]:
    # `re` is not used, because the host imports this module before it sends HELLO.
    major, _, rest = version.partition(".")
    minor = rest[: len(rest) - len(rest.lstrip("0123456789"))]  # the digits, for example "0" in "0rc1"
    shown = len(version) <= _MAX_VERSION_CHARACTERS and version.isascii() and version.isprintable()
    if shown and major.isdecimal() and minor:
        return int(major), int(minor)
    from qnnbridge_protocol.installing import install_command

    raise HandshakeFailed(
        f"The {name} reports {version!r} as its version of qnnbridge, which is not a valid version.",
        cause=f"The {name} is not qnnbridge, or its installation is damaged.",
        fix=f"Install qnnbridge again on the {name}: {install_command(options='--force-reinstall')}",
    )


# --- rules: which side may send which frame ---------------------------------------------------------------------


class Role(enum.Enum):
    CLIENT = "client"
    HOST = "host"


class State(enum.Enum):
    START = "start"
    GREETING = "greeting"
    READY = "ready"
    CLOSING = "closing"
    CLOSED = "closed"


_ASKING = {Kind.REQUEST, Kind.CANCEL, Kind.PING}
_ANSWERING = {Kind.REPLY, Kind.ERROR, Kind.PONG}
_TELLING = {Kind.PHASE, Kind.EVENT}
_CALLING = {Kind.CALL_BACK}


def _stay(state: State, kinds: set[Kind]) -> dict[Kind, State]:
    return dict.fromkeys(kinds, state)


# (role, state) -> kinds of frames that may be sent, and the state after each kind
SENDS: dict[tuple[Role, State], dict[Kind, State]] = {
    (Role.CLIENT, State.START): {Kind.HELLO: State.GREETING},
    (Role.CLIENT, State.READY): _stay(State.READY, _ASKING | {Kind.RETURN}) | {Kind.GOODBYE: State.CLOSING},
    (Role.HOST, State.GREETING): {Kind.HELLO_OK: State.READY, Kind.HELLO_ERR: State.CLOSED},
    (Role.HOST, State.READY): _stay(State.READY, _ANSWERING | _TELLING | _CALLING),
    (Role.HOST, State.CLOSING): _stay(State.CLOSING, _ANSWERING | _TELLING) | {Kind.GOODBYE: State.CLOSED},
}

# (role, state) -> kinds of frames that may be received, and the state after each kind
RECEIVES: dict[tuple[Role, State], dict[Kind, State]] = {
    (Role.CLIENT, State.GREETING): {Kind.HELLO_OK: State.READY, Kind.HELLO_ERR: State.CLOSED},
    (Role.CLIENT, State.READY): _stay(State.READY, _ANSWERING | _TELLING | _CALLING),
    # A CALL_BACK that arrives after this side has sent GOODBYE is dropped.
    (Role.CLIENT, State.CLOSING): _stay(State.CLOSING, _ANSWERING | _TELLING | _CALLING)
    | {Kind.GOODBYE: State.CLOSED},
    (Role.HOST, State.START): {Kind.HELLO: State.GREETING},
    (Role.HOST, State.READY): _stay(State.READY, _ASKING | {Kind.RETURN}) | {Kind.GOODBYE: State.CLOSING},
}

ANSWERS = {Kind.REQUEST: {Kind.REPLY, Kind.ERROR}, Kind.CANCEL: {Kind.REPLY}, Kind.PING: {Kind.PONG}}


class Connection:
    """State of one connection. Two threads may use it at a time, one for sending and one for receiving."""

    def __init__(self, role: Role, hello: Hello) -> None:
        self.role = role
        self.state = State.START
        self.hello = hello
        self.peer: Hello | None = None
        self.agreement: Agreement | None = None
        # Number of answers to abandoned requests. These answers are dropped.
        self.unclaimed_answers = 0
        self._limits: Limits = hello.limits
        self._reader = FrameReader(hello.limits, allow_preamble=role is Role.CLIENT)
        self._last_id = 0
        self._open: dict[int, Kind] = {}
        # Ids of abandoned requests. Their answers still arrive, and are not an error.
        self._given_up: set[int] = set()
        # Requests during which the host waits for a function of the client.
        self._called_back: set[int] = set()

    # --- received frames ---

    @property
    def preamble(self) -> bytes:
        """Text that the peer process printed before its HELLO."""
        return self._reader.preamble

    @property
    def mid_frame(self) -> bool:
        """Whether a frame has been received only in part."""
        return self._reader.mid_frame

    def get_buffer(self) -> memoryview:
        """Return the memory for the next bytes from the stream."""
        return self._reader.get_buffer()

    def received(self, count: int) -> list[Frame]:
        """Process `count` bytes in the buffer of the last `get_buffer` call. Return complete frames; raise
        `ProtocolDesync` for a frame that the rules do not allow."""
        return [frame for frame in self._reader.advance(count) if self._accept(frame)]

    def received_eof(self) -> bool:
        """Record the end of the stream. Return True if the end was expected: between frames, after GOODBYE or
        HELLO_ERR."""
        clean = self.state in (State.CLOSING, State.CLOSED) and not self._reader.mid_frame
        self.state = State.CLOSED
        return clean

    def _accept(self, frame: Frame) -> bool:
        after = RECEIVES.get((self.role, self.state), {}).get(frame.kind)
        if after is None:
            raise desync(f"{frame.kind.name} is not allowed in state {self.state.value}")
        if self.role is Role.CLIENT and frame.kind in _ANSWERING and not self._close_request(frame):
            return False
        if frame.kind is Kind.CALL_BACK and not self._open_call(frame):
            return False
        if self.role is Role.HOST and frame.kind in _ASKING:
            # Numbers only increase, so one comparison detects repeated and old frames.
            if frame.request_id <= self._last_id:
                raise desync(f"request id {frame.request_id} is not greater than {self._last_id}")
            self._last_id = frame.request_id
        self._move(after)
        if frame.kind in (Kind.HELLO, Kind.HELLO_OK):
            self.peer = Hello.from_wire(frame.header, self._reader.hello_version)
            if frame.kind is Kind.HELLO_OK:
                self._agree(negotiate(self.hello, self.peer))
        return True

    def _close_request(self, frame: Frame) -> bool:
        """Close the request that the frame answers. Return whether a caller still waits for the answer."""
        asked = self._open.pop(frame.request_id, None)
        if asked is None:
            raise desync(f"{frame.kind.name} to request {frame.request_id}, which is not open")
        self._called_back.discard(frame.request_id)
        if frame.kind not in ANSWERS[asked]:
            raise desync(f"{frame.kind.name} to a {asked.name}")
        if frame.request_id in self._given_up:
            self._given_up.discard(frame.request_id)
            self.unclaimed_answers += 1
            return False
        return True

    def _open_call(self, frame: Frame) -> bool:
        """Record a CALL_BACK. Return False if its request was abandoned or the connection is closing."""
        number = frame.request_id
        if self._open.get(number) is not Kind.REQUEST:
            raise desync(f"CALL_BACK of request {number}, which is not open")
        if number in self._called_back:
            raise desync(f"CALL_BACK of request {number} before its previous CALL_BACK was answered")
        if self.state is State.CLOSING or number in self._given_up:
            return False
        self._called_back.add(number)
        return True

    # --- sent frames ---

    def send_hello(self) -> list[memoryview]:
        """Return the bytes of the client's HELLO, the first message of a connection."""
        return self.send(Frame(Kind.HELLO, 0, self.hello.to_wire()))

    def accept_hello(self) -> list[memoryview]:
        """Return the bytes of the host's answer to the client's HELLO. Raise `VersionMismatch` or
        `HandshakeFailed`; the caller then sends the error with `refuse_hello`."""
        assert self.peer is not None
        # Negotiate before anything is sent, because incompatible sides need HELLO_ERR as the answer.
        agreement = negotiate(self.peer, self.hello)
        chunks = self.send(Frame(Kind.HELLO_OK, 0, self.hello.to_wire()))
        self._agree(agreement)
        return chunks

    def refuse_hello(self, error: dict[str, Any]) -> list[memoryview]:
        """Return the bytes of the host's refusal of a client, with the reason. The connection ends."""
        return self.send(Frame(Kind.HELLO_ERR, 0, {"error": error}))

    def ask(
        self, kind: Kind, header: dict[str, Any], buffers: tuple[Any, ...] = ()
    ) -> tuple[int, list[memoryview]]:
        """Return the id and the bytes of the client's next request, cancel or ping."""
        request_id = self._last_id + 1
        # Build the frame first: a frame that is too large must neither use up a number nor open a request.
        chunks = self.send(Frame(kind, request_id, header, buffers))
        self._last_id = request_id
        self._open[request_id] = kind
        return request_id, chunks

    def give_back(
        self, request_id: int, header: dict[str, Any], buffers: tuple[Any, ...] = ()
    ) -> list[memoryview] | None:
        """Return the bytes of the client's RETURN for the open CALL_BACK of a request; ``None`` if no CALL_BACK is
        open or the connection is not ready."""
        if request_id not in self._called_back or self.state is not State.READY:
            return None
        # Close the CALL_BACK first, because another thread may receive the next CALL_BACK before this method
        # returns.
        self._called_back.discard(request_id)
        try:
            return self.send(Frame(Kind.RETURN, request_id, header, buffers))
        except BaseException:
            self._called_back.add(request_id)
            raise

    def give_up(self, request_id: int) -> None:
        """Record that no caller waits for the answer to a request any more."""
        if request_id in self._open:
            self._given_up.add(request_id)

    def send(self, frame: Frame) -> list[memoryview]:
        """Return the bytes of a frame. Raise `TooLarge`, or `RuntimeError` for a frame that the rules do not
        allow now."""
        after = SENDS.get((self.role, self.state), {}).get(frame.kind)
        if after is None:
            raise RuntimeError(f"{self.role.value} may not send {frame.kind.name} in state {self.state.value}")
        chunks = write_frame(frame, self._limits)
        self._move(after)
        return chunks

    def _move(self, after: State) -> None:
        # Assign the state only if it changes, and keep CLOSING: the thread for the other direction may just have
        # set it.
        if (after is not self.state and self.state is not State.CLOSING) or after is State.CLOSED:
            self.state = after

    def _agree(self, agreement: Agreement) -> None:
        self.agreement = agreement
        self._limits = self._reader.limits = agreement.limits
