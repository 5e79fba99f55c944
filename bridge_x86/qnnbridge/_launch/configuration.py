"""The configuration file of the application side: a TOML file of the user.

::

    [host]
    python = "C:/Python313-arm64/python.exe"
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qnnbridge_protocol.errors import HostNotFound

CONFIG_VARIABLE = "QNNBRIDGE_CONFIG"


def configuration_file(environ: Mapping[str, str] | None = None) -> Path:
    """Where it is, or would be: QNNBRIDGE_CONFIG, else ``config.toml`` in the user's configuration folder."""
    named = (os.environ if environ is None else environ).get(CONFIG_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_config_dir("qnnbridge", appauthor=False)) / "config.toml"


def configured_host(file: Path, *, must_exist: bool = False) -> str | None:
    """What the file names as the host's interpreter; a relative path is relative to the file's folder.

    ``None`` if there is no file or it names none. Raises `HostNotFound` for a file that cannot be understood, or
    that `must_exist` and does not.
    """
    settings = _read(file, must_exist)
    host = settings.get("host", {})
    if not isinstance(host, dict):
        raise _refused(
            file, "its entry 'host' is not a table", 'Write [host] on one line and python = "..." below.'
        )
    python = host.get("python")
    if python is None:
        return None
    if not isinstance(python, str):
        raise _refused(file, "its entry 'python' in [host] is not a text", 'Write python = "PATH".')
    path = os.path.expanduser(python)
    return os.path.join(file.parent, path) if os.path.dirname(path) else path


def _read(file: Path, must_exist: bool) -> dict[str, Any]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        with file.open("rb") as stream:
            return dict(toml.load(stream))
    except FileNotFoundError:
        if must_exist:
            raise _refused(file, "it does not exist", f"Create it, or unset {CONFIG_VARIABLE}.") from None
        return {}
    except OSError as error:
        raise _refused(file, f"it cannot be read ({error.strerror})", None) from error
    except ValueError as error:  # toml.TOMLDecodeError, UnicodeDecodeError
        raise _refused(
            file,
            f"it is not valid TOML ({error})",
            "In TOML a backslash in double quotes starts an escape: write 'C:\\...' in single quotes, or use /.",
        ) from error


def _refused(file: Path, problem: str, fix: str | None) -> HostNotFound:
    return HostNotFound(
        f"The configuration file {file} cannot be used: {problem}.", fix=fix, details={"path": str(file)}
    )
