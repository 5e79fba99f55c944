"""A daemon survives and explains a lack of descriptors, and a folder that is not writable."""

from __future__ import annotations

import contextlib
import os
import resource
import types
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from filelock import FileLock

import qnnbridge
from qnnbridge._daemon.discovery import FILE_NAME, make_runtime_folder, write_discovery
from qnnbridge_daemon import listener
from qnnbridge_daemon.main import Daemon
from qnnbridge_protocol.errors import HostStartFailed
from qnnbridge_tools.host import link
from tests import needs
from tests.daemon.daemons import StandIn, daemon_process, new_discovery, open_listener, stop_daemon

pytestmark = needs.posix


@contextlib.contextmanager
def no_more_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_daemon_without_free_descriptors_does_not_conclude_that_clients_cannot_find_it() -> None:
    folder = make_runtime_folder()
    discovery = new_discovery(folder)
    write_discovery(folder, discovery)
    daemon: Any = types.SimpleNamespace(
        _folder=folder, _lock=types.SimpleNamespace(is_ours=True), _discovery=discovery, _listener=None
    )
    with no_more_descriptors():
        assert Daemon._can_be_found(daemon)
    (folder / FILE_NAME).unlink()
    assert not Daemon._can_be_found(daemon)


def test_a_daemon_raises_its_limit_of_open_files_to_the_hard_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        with qnnbridge.connect() as host:
            host.ping()
            assert psutil.Process(daemon_process().pid).rlimit(psutil.RLIMIT_NOFILE)[0] == min(hard, 65536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        stop_daemon()


def test_the_error_for_a_daemon_without_free_descriptors_does_not_suggest_starting_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(listener, "Streams", full)
    with open_listener(StandIn().serve), pytest.raises(HostStartFailed, match="limit of open files") as caught:
        qnnbridge.connect(start=False)
    assert "open files" in str(caught.value.fix)
    assert "host start " not in str(caught.value.fix)


def test_a_lock_that_cannot_be_taken_counts_as_no_running_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a read-only disk."""
    (make_runtime_folder() / "daemon.lock").touch(0o600)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(FileLock, "acquire", refuse)
    with pytest.raises(HostStartFailed, match=r"No qnnbridge daemon runs\.") as caught:
        link.reach()
    assert link.is_none(caught.value)
