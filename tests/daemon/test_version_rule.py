"""Releases one minor version apart can share a daemon, two apart cannot; the message says which side to upgrade."""

from __future__ import annotations

import os
from typing import Any

import pytest

import qnnbridge
from qnnbridge_os.descriptors import ByteReader
from qnnbridge_protocol.connection import (
    DAEMON_FEATURE,
    FEATURES,
    Connection,
    Hello,
    Role,
    check_releases,
    negotiate,
    refusal,
)
from qnnbridge_protocol.errors import HandshakeFailed, VersionMismatch
from qnnbridge_protocol.frames import WIRE_VERSION, Frame
from tests.daemon.brokers import GRACE_S, Lab
from tests.daemon.daemons import StandIn, open_listener


@pytest.mark.parametrize(
    ("client", "daemon"),
    [
        ("0.1.0", "0.1.9"),
        ("0.1.0", "0.2.0"),
        ("0.2.0", "0.1.0"),
        ("1.0.0rc1", "1.1.0.dev3"),
    ],
)
def test_releases_that_are_close_to_each_other_share_a_daemon(client: str, daemon: str) -> None:
    check_releases(client, daemon)


@pytest.mark.parametrize(
    ("client", "daemon", "older", "fix"),
    [
        ("0.1.0", "0.3.0", "application side", "Upgrade the application side"),
        ("0.3.0", "0.1.0", "daemon", "qnnbridge host restart"),
        ("0.9.0", "1.0.0", "application side", "Upgrade the application side"),
        ("1.0.0", "0.9.0", "daemon", "/py -m pip install"),
    ],
)
def test_the_error_for_releases_that_are_far_apart_names_the_side_to_upgrade(
    client: str, daemon: str, older: str, fix: str
) -> None:
    with pytest.raises(VersionMismatch) as caught:
        check_releases(client, daemon, "/py")
    assert client in caught.value.message
    assert daemon in caught.value.message
    assert caught.value.details["older"] == older
    assert fix in str(caught.value.fix)


def test_a_private_host_may_have_any_release_with_the_same_protocol() -> None:
    old, new = Hello(qnnbridge="0.1.0"), Hello(qnnbridge="0.9.0")
    assert negotiate(old, new).features == FEATURES
    assert negotiate(Hello(qnnbridge="0.1.0", features=FEATURES | {DAEMON_FEATURE}), new).features == FEATURES
    with pytest.raises(VersionMismatch):
        negotiate(*(Hello(qnnbridge=v, features=FEATURES | {DAEMON_FEATURE}) for v in ("0.1.0", "0.9.0")))


NO_VERSIONS = ["", "abc", "1", "1.x", ".2", "٣.١", "1.0\x1b[2J", "1." + "9" * 5000, 3, 1.2, None, ["1.0"], {}, True]


@pytest.mark.parametrize("told", NO_VERSIONS)
def test_an_invalid_version_is_refused_by_the_daemon_and_by_the_client(told: Any) -> None:
    good = Hello(features=FEATURES | {DAEMON_FEATURE})
    for features in (good.features, FEATURES):  # also a client that only wants to end the daemon
        bad = Hello.from_wire({**good._replace(features=features).to_wire(), "qnnbridge": told})
        with pytest.raises(HandshakeFailed, match="application side reports") as caught:
            negotiate(bad, good)
        assert len(str(caught.value)) < 500
        assert str(caught.value).replace("\n", "").isprintable()
    bad = Hello.from_wire({**good.to_wire(), "qnnbridge": told})
    with pytest.raises(HandshakeFailed, match="daemon reports"):
        negotiate(good, bad)


def test_the_daemon_answers_a_client_without_a_version(lab: Lab) -> None:
    write_fd, read_fd, thread = lab.connect()
    connection = Connection(Role.CLIENT, Hello(qnnbridge="abc", features=FEATURES | {DAEMON_FEATURE}))
    try:
        os.write(write_fd, b"".join(connection.send_hello()))
        frames: list[Frame] = []
        while not frames:
            frames += ByteReader(read_fd).read_into(connection.get_buffer(), connection.received)
        assert isinstance(refusal(frames[0].header), HandshakeFailed)
        assert "'abc'" in str(refusal(frames[0].header))
        thread.join(GRACE_S)
        assert not thread.is_alive()
    finally:
        os.close(write_fd)
        os.close(read_fd)


@pytest.mark.parametrize("told", [None, 5, [], {}, {"code": 7}, {"code": "data.Fail", "message": "no"}])
def test_a_refusal_without_a_valid_reason_is_a_failed_handshake(told: Any) -> None:
    error = refusal({"error": told})
    assert type(error) is HandshakeFailed
    assert error.message


def test_the_error_for_another_wire_version_is_read_from_fields_that_all_versions_share() -> None:
    ours, to_come = Hello(), WIRE_VERSION + 1
    named = {"qnnbridge": "7.0.0", "executable": "/py", "features": [DAEMON_FEATURE]}
    for kept in (named, {"qnnbridge": "7.0.0"}, {}, {**named, "api": "gone", "limits": 3, "features": 9}):
        theirs = Hello.from_wire(kept, to_come)
        for client, host, older in ((ours, theirs, "application side"), (theirs, ours, "host")):
            with pytest.raises(VersionMismatch, match=f"wire version {to_come}") as caught:
                negotiate(client, host)
            assert caught.value.details["older"] == older


def releases_away(minors: int) -> str:
    major, minor = qnnbridge.__version__.split(".")[:2]
    return f"{major}.{int(minor) + minors}.0"


def test_a_daemon_one_minor_version_newer_works() -> None:
    with open_listener(StandIn(releases_away(1)).serve), qnnbridge.connect(start=False) as host:
        assert host.ping() >= 0


def test_a_daemon_two_minor_versions_newer_is_refused_with_an_explanation_by_the_daemon() -> None:
    with open_listener(StandIn(releases_away(2)).serve):
        with pytest.raises(VersionMismatch, match="more than one minor version apart") as caught:
            qnnbridge.connect(start=False)
    assert "Upgrade the application side" in str(caught.value.fix)


def test_an_application_two_minor_versions_newer_is_refused_with_an_explanation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open_listener(StandIn(qnnbridge.__version__).serve):
        from qnnbridge._supervision import host_process

        monkeypatch.setattr(
            host_process, "Hello", lambda **given: Hello(**{**given, "qnnbridge": releases_away(2)})
        )
        with pytest.raises(VersionMismatch, match="more than one minor version apart") as caught:
            qnnbridge.connect(start=False)
    assert "Upgrade the daemon" in str(caught.value.fix)


def test_the_same_host_connects_after_the_daemon_was_replaced_by_a_compatible_one() -> None:
    """An incompatible daemon does not affect the connection to the next daemon."""
    from qnnbridge._daemon import DaemonAccess
    from qnnbridge._host import daemon_host

    host = daemon_host(DaemonAccess(start=False))
    with open_listener(StandIn(releases_away(2)).serve), pytest.raises(VersionMismatch):
        host.start()
    with open_listener(StandIn().serve), host:
        host.start()
        assert host.ping() >= 0
