"""An application that starts a host, prints the host's pid and waits until it is killed: ``holds_a_host.py
[PYTHON]``."""

from __future__ import annotations

import sys

import qnnbridge

with qnnbridge.Host(python=sys.argv[1] if len(sys.argv) > 1 else None) as host:
    print(host.info.pid, flush=True)
    sys.stdin.read()
