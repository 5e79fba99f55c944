"""Hosts with the scripted engine, for tests."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import qnnbridge

FAKE_HOST = str(Path(__file__).with_name("fake_host.py"))


def fake_host(*arguments: str, **options: Any) -> qnnbridge.Host:
    """A host of which the engine does what the model says. Arguments: see `fake_host.py`."""
    command = [sys.executable, "-I", "-u", "-X", "utf8", "-X", "faulthandler", FAKE_HOST]
    return qnnbridge.Host(_command=[*command, *arguments, "--parent", str(os.getpid())], **options)


def script(**what: Any) -> bytes:
    """A "model" for the scripted engine; see `fake_engine.py`."""
    return json.dumps(what).encode()
