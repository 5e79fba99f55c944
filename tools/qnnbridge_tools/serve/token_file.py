"""The token that clients have to show, from a file that nobody else can read."""

from __future__ import annotations

import hmac
import os
import re
import stat
import sys
from pathlib import Path
from typing import Final

from qnnbridge_protocol.errors import NoSuchFile, OptionError

MOST_BYTES: Final = 4096
_TOKEN: Final = re.compile(rb"[\x21-\x7e]{16,1024}")
_HOW: Final = (
    'Make one: (umask 077; python -c "import secrets; print(secrets.token_urlsafe(32))" > FILE), '
    "and give it with --token-file FILE."
)


def read_token(path: Path) -> bytes:
    """Raises `OptionError` for a file that others may read, and for a token that could be guessed."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise NoSuchFile(f"There is no token file {path}.", fix=_HOW) from None
    except OSError as error:
        raise OptionError(f"The token file {path} cannot be read.", cause=error.strerror) from None
    _check_owner(path, status)
    token = text.strip()
    if not _TOKEN.fullmatch(token):
        raise OptionError(
            f"{path} holds no token: one line of 16 to 1024 ASCII characters without spaces is needed.", fix=_HOW
        )
    return token


def _check_owner(path: Path, status: os.stat_result) -> None:
    if sys.platform == "win32":  # the file's access list decides; a user's own folders are private there
        return
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise OptionError(
            f"The token file {path} can be read by others: its mode is {mode:04o}.", fix=f"chmod 600 {path}"
        )
    if status.st_uid not in (os.getuid(), 0):
        raise OptionError(f"The token file {path} belongs to another user.", fix="Use a file of your own.")


def shows_token(authorization: bytes | None, token: bytes) -> bool:
    """Whether an ``Authorization`` header carries the token. Takes the same time however much of it is right."""
    scheme, _, given = (authorization or b"").partition(b" ")
    return hmac.compare_digest(given.strip(), token) and scheme.lower() == b"bearer"
