"""The disposable hosts of one piece of work, so that all of them can be ended at once when it is interrupted.

A thread belongs to at most one group; a host that is made in it is the group's until it is gone.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING

from qnnbridge_protocol.errors import Closed

if TYPE_CHECKING:
    from qnnbridge._host import Host

_of_thread = threading.local()


class HostGroup:
    """Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hosts: weakref.WeakSet[Host] = weakref.WeakSet()
        self._ended = False

    def join(self) -> None:
        """From now on the hosts that this thread makes belong here."""
        _of_thread.group = self

    def add(self, host: Host) -> None:
        with self._lock:
            if self._ended:
                raise Closed("The work was interrupted.")
            self._hosts.add(host)

    def end(self) -> None:
        """Kill the processes of all of them; who works with one gets an error, and no new one is made."""
        with self._lock:
            self._ended = True
            hosts = list(self._hosts)
        for host in hosts:
            process = host.supervisor.running
            if process is not None:
                # The reason first: whoever sees the end of the stream before it would report a crash.
                process.channel.fail(Closed("The work was interrupted."))
                process.kill("the work was interrupted")
            with contextlib.suppress(Exception):
                host.close()


def joined(host: Host) -> Host:
    """`host`, as a member of the group of this thread if that has one."""
    group: HostGroup | None = getattr(_of_thread, "group", None)
    if group is not None:
        group.add(host)
    return host
