"""A daemon in a separate process with separate folders, which is killed after the test if it still runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import qnnbridge

END_TIMEOUT_S = 20.0


@contextlib.contextmanager
def daemon_of_its_own(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[qnnbridge.Host]:
    """Yield a connection to a new daemon, and end every daemon of its folder afterwards."""
    for name in ("RUNTIME", "STATE", "CACHE"):
        patch.setenv(f"QNNBRIDGE_{name}_DIR", str(folder / name.lower()))
    seen: list[psutil.Process] = []
    try:
        with qnnbridge.connect(start=True) as host:
            seen.extend(family(host))
            yield host
            seen.extend(family(host))
            host.call({"op": "daemon.stop"})
    finally:
        _, alive = psutil.wait_procs(seen, timeout=END_TIMEOUT_S)
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
    assert not alive, f"the daemon did not end: {alive}"


def status(host: qnnbridge.Host) -> dict[str, Any]:
    document: dict[str, Any] = host.call({"op": "daemon.status"}, timeout=END_TIMEOUT_S).header["status"]
    return document


def family(host: qnnbridge.Host) -> list[psutil.Process]:
    """Return the daemon and the processes that it started."""
    daemon = psutil.Process(status(host)["daemon"]["pid"])
    return [daemon, *daemon.children(recursive=True)]
