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
    """A host of which the engine does what the model says. Arguments: see `fake_host.py`."""
    command = [python, "-I", "-u", "-X", "utf8", "-X", "faulthandler", FAKE_HOST]
    return qnnbridge.Host(_command=[*command, *arguments, "--parent", name_of(os.getpid())], **options)


def dying_host(step: str, once: Path, *arguments: str, **options: Any) -> qnnbridge.Host:
    """A host that dies once, at a step of the protocol; see `relay.py`."""
    command = [sys.executable, "-u", RELAY, str(once), step, *arguments, "--parent", str(os.getpid())]
    return qnnbridge.Host(_command=command, **options)


def patched_host(folder: Path, code: str, **options: Any) -> qnnbridge.Host:
    """The real host after `code` has run in it, and in its workers. folder: for a file."""
    patch = folder / "patch.py"
    patch.write_text(textwrap.dedent(code), encoding="utf-8")
    command = [sys.executable, "-I", "-u", "-X", "utf8", "-X", "faulthandler", PATCHED_HOST, f"--patch={patch}"]
    return qnnbridge.Host(_command=[*command, "--parent", str(os.getpid())], **options)


def script(**what: Any) -> bytes:
    """A "model" for the scripted engine; see `fake_engine.py`."""
    return json.dumps(what).encode()
