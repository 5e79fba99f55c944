"""The records of the authentication dialogue: a client without the token, or a changed record, is refused."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnnbridge_protocol.auth import (
    ANSWER_BYTES,
    CHALLENGE_BYTES,
    INSTANCE_BYTES,
    NAME_BYTES,
    PROOF_BYTES,
    TOKEN_BYTES,
    AdmissionCode,
    ClientIdentity,
    ClientSide,
    DaemonAnswer,
    DaemonSide,
    NotProven,
)
from qnnbridge_protocol.errors import VersionMismatch

TOKEN = secrets.token_bytes(TOKEN_BYTES)
INSTANCE = secrets.token_bytes(INSTANCE_BYTES)
WELCOME = DaemonAnswer(AdmissionCode.WELCOME, (7, 9))
REFUSED = (NotProven, VersionMismatch)


def client(token: bytes = TOKEN, instance: bytes = INSTANCE, identity: ClientIdentity | None = None) -> ClientSide:
    return ClientSide(token, instance, identity or ClientIdentity(4711, "app.py"))


def flipped(record: bytes, at: int, bit: int) -> bytes:
    changed = bytearray(record)
    changed[at] ^= 1 << bit
    return bytes(changed)


@given(
    st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES),
    st.integers(0, 2**32 - 1),
    st.text(max_size=100),
    st.sampled_from(AdmissionCode),
    st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
)
def test_a_client_with_the_token_is_authenticated_and_gets_the_answer(
    token: bytes, pid: int, name: str, verdict: AdmissionCode, handles: tuple[int, int]
) -> None:
    daemon, peer = DaemonSide(token, INSTANCE), client(token, identity=ClientIdentity(pid, name))
    proof = peer.prove(daemon.challenge)
    seen = daemon.check(proof)
    answer = daemon.answer(DaemonAnswer(verdict, handles))

    assert (len(daemon.challenge), len(proof), len(answer)) == (CHALLENGE_BYTES, PROOF_BYTES, ANSWER_BYTES)
    assert seen.pid == pid
    assert len(seen.name.encode()) <= NAME_BYTES
    assert seen.name.isprintable()
    assert peer.check(answer) == DaemonAnswer(verdict, handles)


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("app.py", "app.py"),
        ("ä" * 40, "ä" * 32),
        ("x" * 63 + "ä", "x" * 63),
        ("a\x1b[31mb\n", "a?[31mb?"),
        ("\udc80", "?"),
    ],
)
def test_a_client_name_is_truncated_between_characters_and_loses_control_characters(name: str, seen: str) -> None:
    daemon = DaemonSide(TOKEN, INSTANCE)
    assert daemon.check(client(identity=ClientIdentity(1, name)).prove(daemon.challenge)).name == seen


def test_a_changed_bit_in_the_challenge_fails_the_authentication() -> None:
    for at, bit in itertools.product(range(CHALLENGE_BYTES), range(8)):
        daemon = DaemonSide(TOKEN, INSTANCE)
        with pytest.raises(REFUSED):
            daemon.check(client().prove(flipped(daemon.challenge, at, bit)))


def test_a_changed_bit_in_the_proof_fails_the_authentication() -> None:
    for at, bit in itertools.product(range(PROOF_BYTES), range(8)):
        daemon = DaemonSide(TOKEN, INSTANCE)
        proof = client().prove(daemon.challenge)
        with pytest.raises(NotProven):
            daemon.check(flipped(proof, at, bit))


def test_a_client_refuses_an_answer_with_a_changed_bit() -> None:
    for at, bit in itertools.product(range(ANSWER_BYTES), range(8)):
        daemon, peer = DaemonSide(TOKEN, INSTANCE), client()
        daemon.check(peer.prove(daemon.challenge))
        with pytest.raises(NotProven):
            peer.check(flipped(daemon.answer(WELCOME), at, bit))


def test_a_proof_is_valid_for_one_challenge_only() -> None:
    first, second = DaemonSide(TOKEN, INSTANCE), DaemonSide(TOKEN, INSTANCE)
    proof = client().prove(first.challenge)
    first.check(proof)
    with pytest.raises(NotProven):
        second.check(proof)


def test_a_client_refuses_an_answer_to_another_client() -> None:
    daemon, one, other = DaemonSide(TOKEN, INSTANCE), client(), client()
    daemon.check(one.prove(daemon.challenge))
    other.prove(daemon.challenge)
    with pytest.raises(NotProven):
        other.check(daemon.answer(WELCOME))


def test_a_reflected_signature_of_the_daemon_fails_the_authentication() -> None:
    """Both sides sign with the same key, but different data."""
    daemon, peer = DaemonSide(TOKEN, INSTANCE), client()
    proof = peer.prove(daemon.challenge)
    mac = hmac.new(TOKEN, b"server" + daemon.challenge + proof[:-32], hashlib.sha256).digest()
    with pytest.raises(NotProven):
        daemon.check(proof[:-32] + mac)


def test_a_client_with_another_token_is_refused() -> None:
    daemon = DaemonSide(TOKEN, INSTANCE)
    with pytest.raises(NotProven):
        daemon.check(client(token=bytes(TOKEN_BYTES)).prove(daemon.challenge))


def test_a_client_refuses_a_daemon_without_the_token() -> None:
    false = DaemonSide(bytes(TOKEN_BYTES), INSTANCE)
    peer = client()
    proof = peer.prove(false.challenge)
    with pytest.raises(NotProven):
        false.check(proof)
    false._proof = proof  # the daemon still answers
    with pytest.raises(NotProven):
        peer.check(false.answer(WELCOME))


def test_a_client_sends_no_proof_to_another_daemon_instance() -> None:
    with pytest.raises(NotProven, match="a different daemon"):
        client().prove(DaemonSide(TOKEN, bytes(INSTANCE_BYTES)).challenge)


@pytest.mark.parametrize("size", [0, 1, CHALLENGE_BYTES - 1, CHALLENGE_BYTES + 1])
def test_a_challenge_of_the_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(NotProven):
        client().prove(bytes(size))


def test_a_newer_dialogue_version_is_reported_in_the_error() -> None:
    challenge = bytearray(DaemonSide(TOKEN, INSTANCE).challenge)
    challenge[8] = 2
    with pytest.raises(VersionMismatch, match="version 2 of the authentication, this side uses version 1"):
        client().prove(bytes(challenge))


def test_no_record_contains_the_token() -> None:
    daemon, peer = DaemonSide(TOKEN, INSTANCE), client()
    proof = peer.prove(daemon.challenge)
    daemon.check(proof)
    said = daemon.challenge + proof + daemon.answer(WELCOME)
    assert not any(TOKEN[i : i + 8] in said for i in range(TOKEN_BYTES - 8))
