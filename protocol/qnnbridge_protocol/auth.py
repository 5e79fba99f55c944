"""Authentication between a daemon and its clients, without I/O: with three records each side proves that it has the
token.

::

    daemon  CHALLENGE  magic, version, instance, nonce
    client  PROOF      magic, nonce, process id, name, HMAC-SHA256(token, "client" | CHALLENGE | PROOF so far)
    daemon  ANSWER     magic, verdict, two handles, HMAC-SHA256(token, "server" | CHALLENGE | PROOF | ANSWER so far)

Invariants: a record with any changed byte is refused; a PROOF is valid only for the connection whose nonce it
contains; the token itself is never sent. The daemon does not answer a client that has not proved the token.

One object belongs to one connection and one thread.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import hmac
import secrets
import struct
from typing import Final

from qnnbridge_protocol.errors import VersionMismatch
from qnnbridge_protocol.process_names import is_frozen

AUTH_VERSION: Final = 1
TOKEN_BYTES: Final = 32
INSTANCE_BYTES: Final = 16
NONCE_BYTES: Final = 32
NAME_BYTES: Final = 64

_MAC_BYTES: Final = 32
_CHALLENGE: Final = struct.Struct(f"<8sHH{INSTANCE_BYTES}s{NONCE_BYTES}s")
_PROOF: Final = struct.Struct(f"<8s{NONCE_BYTES}sIB3s{NAME_BYTES}s")
_ANSWER: Final = struct.Struct("<8sI4sQQ")

# The first byte is not ASCII, so that a program that prints text or uses another protocol is not mistaken for a
# daemon.
_CHALLENGE_MAGIC: Final = b"\x89QNBASK\n"
_PROOF_MAGIC: Final = b"\x89QNBPRF\n"
_ANSWER_MAGIC: Final = b"\x89QNBANS\n"

CHALLENGE_BYTES: Final = _CHALLENGE.size
PROOF_BYTES: Final = _PROOF.size + _MAC_BYTES
ANSWER_BYTES: Final = _ANSWER.size + _MAC_BYTES


class NotProven(Exception):
    """The other side does not have the token, is a different daemon, or does not use this protocol."""


class AdmissionCode(enum.IntEnum):
    """The daemon's response to a client that has proved the token."""

    WELCOME = 0
    LEAVING = 1
    NO_ROOM = 2


@dataclasses.dataclass(frozen=True, slots=True)
class ClientIdentity:
    """Process id and name of a client, from its PROOF record."""

    pid: int
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonAnswer:
    """The daemon's ANSWER record. `handles` (read, write) are valid in the client's process; 0 if no handles are
    passed as numbers."""

    verdict: AdmissionCode
    handles: tuple[int, int] = (0, 0)


class DaemonSide:
    """The daemon's side of one authentication."""

    def __init__(self, token: bytes, instance: bytes) -> None:
        self._token = token
        self.challenge = _CHALLENGE.pack(
            _CHALLENGE_MAGIC, AUTH_VERSION, 0, instance, secrets.token_bytes(NONCE_BYTES)
        )
        self._proof = b""

    def check(self, proof: bytes) -> ClientIdentity:
        """Return the client's identity. Raise `NotProven` if the proof is wrong."""
        body, mac = proof[: _PROOF.size], proof[_PROOF.size :]
        if not hmac.compare_digest(_mac(self._token, b"client", self.challenge, body), mac):
            raise NotProven("the proof is wrong")
        magic, _, pid, length, _, name = _PROOF.unpack(body)
        if magic != _PROOF_MAGIC or length > NAME_BYTES:
            raise NotProven("not a proof")
        self._proof = proof
        return ClientIdentity(pid, _readable(name[:length]))

    def answer(self, answer: DaemonAnswer) -> bytes:
        """Return the ANSWER for a client that `check` accepted."""
        assert self._proof
        body = _ANSWER.pack(_ANSWER_MAGIC, int(answer.verdict), bytes(4), *answer.handles)
        return body + _mac(self._token, b"server", self.challenge, self._proof, body)


class ClientSide:
    """The application's side of one authentication."""

    def __init__(self, token: bytes, instance: bytes, identity: ClientIdentity) -> None:
        self._token = token
        self._instance = instance
        self._identity = identity
        self._challenge = b""
        self._proof = b""

    def prove(self, challenge: bytes) -> bytes:
        """Return the PROOF for a challenge. Raise `NotProven` or `VersionMismatch`."""
        if len(challenge) != CHALLENGE_BYTES:
            raise NotProven("not a challenge")
        magic, version, reserved, instance, _ = _CHALLENGE.unpack(challenge)
        if magic != _CHALLENGE_MAGIC:
            raise NotProven("not a challenge")
        if (version, reserved) != (AUTH_VERSION, 0):
            # imported here because only this message needs the module
            from qnnbridge_protocol.installing import install_command

            raise VersionMismatch(
                f"The daemon uses version {version} of the authentication, this side uses version {AUTH_VERSION}.",
                fix="Build the application again with the daemon's qnnbridge, or upgrade the daemon."
                if is_frozen()
                else f"Upgrade the older one: {install_command(options='--upgrade')}   Then restart the daemon: "
                "qnnbridge host restart --daemon",
            )
        if not hmac.compare_digest(instance, self._instance):
            raise NotProven("it is a different daemon")
        name = _cut(self._identity.name)
        body = _PROOF.pack(
            _PROOF_MAGIC,
            secrets.token_bytes(NONCE_BYTES),
            self._identity.pid & 0xFFFFFFFF,
            len(name),
            bytes(3),
            name,
        )
        self._challenge = challenge
        self._proof = body + _mac(self._token, b"client", challenge, body)
        return self._proof

    def check(self, answer: bytes) -> DaemonAnswer:
        """Return the daemon's answer. Raise `NotProven` if it is not authentic."""
        body, mac = answer[: _ANSWER.size], answer[_ANSWER.size :]
        if not hmac.compare_digest(_mac(self._token, b"server", self._challenge, self._proof, body), mac):
            raise NotProven("the daemon does not have the token")
        magic, verdict, _, read_handle, write_handle = _ANSWER.unpack(body)
        if magic != _ANSWER_MAGIC or verdict not in list(AdmissionCode):
            raise NotProven("not an answer")
        return DaemonAnswer(AdmissionCode(verdict), (read_handle, write_handle))


def _mac(token: bytes, side: bytes, *parts: bytes) -> bytes:
    return hmac.new(token, side + b"".join(parts), hashlib.sha256).digest()


def _cut(name: str) -> bytes:
    """Encode the name in at most `NAME_BYTES` bytes, without a partial character at the end."""
    raw = name.encode("utf-8", "replace")[:NAME_BYTES]
    return raw.decode("utf-8", "ignore").encode()


def _readable(name: bytes) -> str:
    """Return the name with unprintable characters replaced: terminals, which show the name, interpret control
    characters."""
    return "".join(c if c.isprintable() else "?" for c in name.decode("utf-8", "replace"))
