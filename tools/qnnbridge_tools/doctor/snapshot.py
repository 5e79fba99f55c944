"""A snapshot: the facts of a computer in a file, to be diagnosed on another one.

The classes of `facts` are the schema: unknown names are passed over, missing ones get their default, so that
a doctor reads snapshots of older and newer ones. It holds what the checks need and nothing else: no variable
outside of the allow-list, no contents of files. Home folders and the user's name are replaced, so that it can
be handed on.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, Final

from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.field_types import read_document
from qnnbridge_tools.doctor.facts import Facts
from qnnbridge_tools.doctor.machine import Machine


def encode(value: Any) -> Any:
    """A value of `facts` in JSON's types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    return value


def decode_facts(document: Any) -> Facts:
    """Raises `ValueError`, which names the place, for what is not as the classes say."""
    return read_document(Facts, document, "facts")


SCHEMA: Final = 1
KIND: Final = "qnnbridge doctor snapshot"
USER: Final = "user"
# Stands for a name that is not ASCII, which may be the fault that is looked for.
FOREIGN_USER: Final = "üser"
# A shorter user name, replaced wherever it occurs, would garble words.
_LEAST_NAME: Final = 3
_TOO_COMMON: Final = frozenset({"root", "python", "windows", "admin", "user", "users", "public"})
_PROFILE: Final = re.compile(
    r"(?i)(?P<before>(?:[\\/]|^)(?:users|home|documents and settings)[\\/]+)(?P<name>[^\\/\"']+)"
)


def snapshot_text(facts: Facts, machine: Machine) -> str:
    document = {"kind": KIND, "schema": SCHEMA, "facts": _clean(encode(facts), machine)}
    # ASCII alone, so that the file survives any encoding on its way.
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


def read_snapshot(path: Path) -> Facts:
    """Raises `OptionError` for a file of another kind, `OSError` for one that cannot be read."""
    try:
        document = json.loads(path.read_text("utf-8"))
        if not isinstance(document, dict) or document.get("kind") != KIND:
            raise OptionError(
                f"{path} is no snapshot of the doctor.", fix="Make one: qnnbridge doctor --snapshot FILE"
            )
        if document.get("schema") != SCHEMA:
            raise OptionError(
                f"{path} has schema {document.get('schema')!r}, this qnnbridge reads {SCHEMA}.",
                fix="Use the same version of qnnbridge on both computers.",
            )
        return decode_facts(document.get("facts"))
    except (ValueError, RecursionError) as error:
        # `json` raises RecursionError for deep nesting.
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"{path} is no snapshot of the doctor: {error}.") from None


def _clean(value: Any, machine: Machine) -> Any:
    if isinstance(value, str):
        return _clean_text(value, machine)
    if isinstance(value, list):
        return [_clean(item, machine) for item in value]
    if isinstance(value, dict):
        return {key: _clean(item, machine) for key, item in value.items()}
    return value


def _clean_text(text: str, machine: Machine) -> str:
    # First by the place: the folder of a profile may have another name than its user.
    text = _PROFILE.sub(lambda match: match["before"] + _stand_in(match["name"]), text)
    name = machine.user
    if len(name) < _LEAST_NAME or name.lower() in _TOO_COMMON:
        return text
    # Not within a longer word. An underscore is a boundary: file names join words by it.
    return re.sub(rf"(?i)(?<![^\W_]){re.escape(name)}(?![^\W_])", _stand_in(name), text)


def _stand_in(name: str) -> str:
    # Profiles that Windows makes itself name nobody.
    if name.lower() in ("public", "all users", "default"):
        return name
    return USER if name.isascii() else FOREIGN_USER
