"""Releases that share a daemon: one minor version apart works, two do not, and the words say which side to upgrade."""

from __future__ import annotations

import pytest

import qnnbridge
from qnnbridge_protocol.errors import VersionMismatch
from qnnbridge_protocol.hello import DAEMON_FEATURE, FEATURES, Hello, check_releases, negotiate
from tests.daemon.doors import StandIn, open_listener


@pytest.mark.parametrize(
    ("client", "daemon"),
    [
        ("0.1.0", "0.1.9"),
        ("0.1.0", "0.2.0"),
        ("0.2.0", "0.1.0"),
        ("1.0.0rc1", "1.1.0.dev3"),
        ("?", "0.9.0"),
        ("0.1.0", ""),
    ],
)
def test_releases_that_are_near_each_other_share_a_daemon(client: str, daemon: str) -> None:
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
def test_releases_that_are_far_apart_are_told_what_to_upgrade(
    client: str, daemon: str, older: str, fix: str
) -> None:
    with pytest.raises(VersionMismatch) as caught:
        check_releases(client, daemon, "/py")
    assert client in caught.value.message
    assert daemon in caught.value.message
    assert caught.value.details["older"] == older
    assert fix in str(caught.value.fix)


def test_a_private_host_may_be_of_any_release_that_speaks_the_protocol() -> None:
    old, new = Hello(qnnbridge="0.1.0"), Hello(qnnbridge="0.9.0")
    assert negotiate(old, new).features == FEATURES
    assert negotiate(Hello(qnnbridge="0.1.0", features=FEATURES | {DAEMON_FEATURE}), new).features == FEATURES
    with pytest.raises(VersionMismatch):
        negotiate(*(Hello(qnnbridge=v, features=FEATURES | {DAEMON_FEATURE}) for v in ("0.1.0", "0.9.0")))


def releases_away(minors: int) -> str:
    major, minor = qnnbridge.__version__.split(".")[:2]
    return f"{major}.{int(minor) + minors}.0"


def test_a_daemon_one_minor_version_newer_works() -> None:
    with open_listener(StandIn(releases_away(1)).serve), qnnbridge.connect(start=False) as host:
        assert host.ping() >= 0


def test_a_daemon_two_minor_versions_newer_is_refused_in_words_by_the_daemon() -> None:
    with open_listener(StandIn(releases_away(2)).serve):
        with pytest.raises(VersionMismatch, match="more than one minor version apart") as caught:
            qnnbridge.connect(start=False)
    assert "Upgrade the application side" in str(caught.value.fix)


def test_an_application_two_minor_versions_newer_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_listener(StandIn(qnnbridge.__version__).serve):
        from qnnbridge._transport import host_process

        monkeypatch.setattr(
            host_process, "Hello", lambda **given: Hello(**{**given, "qnnbridge": releases_away(2)})
        )
        with pytest.raises(VersionMismatch, match="more than one minor version apart") as caught:
            qnnbridge.connect(start=False)
    assert "Upgrade the daemon" in str(caught.value.fix)


def test_after_the_daemon_was_replaced_by_a_fitting_one_the_same_host_connects() -> None:
    """A misfit is not held against the daemon that comes next."""
    from qnnbridge._daemon import DaemonAccess
    from qnnbridge._daemon.connect import daemon_host

    host = daemon_host(DaemonAccess(start=False))
    with open_listener(StandIn(releases_away(2)).serve), pytest.raises(VersionMismatch):
        host.start()
    with open_listener(StandIn().serve), host:
        host.start()
        assert host.ping() >= 0
