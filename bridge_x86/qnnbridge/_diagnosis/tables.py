"""Read the JSON tables in this folder: exit codes, QNN's error codes, log rules, causes of deaths."""

from __future__ import annotations

import json
import os
from typing import Any, Final

from qnnbridge_protocol.errors import HostError
from qnnbridge_protocol.tables import read_tables


def _content(name: str) -> str:
    path = os.path.join(os.path.dirname(__file__), name)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise HostError(
            f"qnnbridge cannot read its table {name}, which it needs to explain why a host ended.",
            cause=f"{path}: {error.strerror or error}. The installation or the frozen application is incomplete.",
            fix="Reinstall qnnbridge. In a frozen application include the data files of the package qnnbridge "
            "(Nuitka: --include-package-data=qnnbridge).",
        ) from None


# Messages that several rows share. `qnnbridge_tools` uses the messages, too.
TEXTS: Final[dict[str, str]] = json.loads(_content("texts.json"))


def read(name: str) -> dict[str, Any]:
    """Return the tables of a file. Raise `HostError` if the file cannot be read."""
    return read_tables(_content(name), TEXTS)
