"""Kill an application with a host and print whether the host ended, too: ``watch_host_end.py [HOST_PYTHON]``."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil

# The limit that the README promises.
END_TIMEOUT_S = 5.0

application = subprocess.Popen(
    [sys.executable, str(Path(__file__).with_name("holds_a_host.py")), *sys.argv[1:]],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
)
assert application.stdout is not None
host = psutil.Process(int(application.stdout.readline()))
application.kill()
application.wait()
killed_at = time.monotonic()
try:
    host.wait(END_TIMEOUT_S)
    ended = True
except psutil.TimeoutExpired:
    host.kill()
    ended = False
print(json.dumps({"host_ended": ended, "after_s": round(time.monotonic() - killed_at, 3)}))
