"""Hosts with the scripted engine, for tests."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import qnnbridge
from qnnbridge_protocol.process_names import name_of

FAKE_HOST = str(Path(__file__).with_name("fake_host.py"))
PATCHED_HOST = str(Path(__file__).with_name("patched_host.py"))
RELAY = str(Path(__file__).with_name("relay.py"))


def fake_host(*arguments: str, python: str = sys.executable, **options: Any) -> qnnbridge.Host:
    """Return a host whose engine follows the script in the model. Arguments: see `fake_host.py`."""
    command = [python, "-I", "-u", "-X", "utf8", "-X", "faulthandler", FAKE_HOST]
    return qnnbridge.Host(_command=[*command, *arguments, "--parent", name_of(os.getpid())], **options)


def dying_host(step: str, once: Path, *arguments: str, **options: Any) -> qnnbridge.Host:
    """Return a host that crashes once, at a step of the protocol; see `relay.py`."""
    command = [sys.executable, "-u", RELAY, str(once), step, *arguments, "--parent", str(os.getpid())]
    return qnnbridge.Host(_command=command, **options)


def patched_host(folder: Path, code: str, **options: Any) -> qnnbridge.Host:
    """Return a real host that first runs `code`, as do its workers. folder: for the file with the code."""
    patch = folder / "patch.py"
    patch.write_text(textwrap.dedent(code), encoding="utf-8")
    command = [sys.executable, "-I", "-u", "-X", "utf8", "-X", "faulthandler", PATCHED_HOST, f"--patch={patch}"]
    return qnnbridge.Host(_command=[*command, "--parent", str(os.getpid())], **options)


def script(**what: Any) -> bytes:
    """Return a "model" for the scripted engine; see `fake_engine.py`."""
    return json.dumps(what).encode()
