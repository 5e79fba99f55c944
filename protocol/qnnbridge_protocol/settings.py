"""Settings in environment variables: the engine (the QNN that a host loads), and folder and size of the model
cache.

The application passes the engine to the host in environment variables. For the cache, it reads its environment for
each session and sends the settings to the host; a command line tool reads its own environment. The host imports
this module before HELLO, so the module does not import `typing`, `re` or `pathlib`.
"""

from __future__ import annotations

import os

from qnnbridge_protocol.errors import OptionError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Final, Literal

    from qnnbridge_protocol.model_records import CacheSettings

    EngineName = Literal["auto", "wheel", "windowsml", "folder"]

ENGINE_VARIABLE: Final = "QNNBRIDGE_ENGINE"
EP_PATH_VARIABLE: Final = "QNNBRIDGE_EP_PATH"

# Sources of QNN. auto: the host chooses. wheel: onnxruntime-qnn. windowsml: the catalogue of Windows. folder: a
# given folder.
ENGINES: Final[tuple[EngineName, ...]] = ("auto", "wheel", "windowsml", "folder")


def engine_of(environ: Mapping[str, str]) -> tuple[EngineName, str | None]:
    """Return the engine and the path of the execution provider's library or folder that the environment variables
    set. If only the path is set, the engine is "folder".

    Raises:
        OptionError: the engine does not exist, or engine and path contradict each other.
    """
    name = environ.get(ENGINE_VARIABLE) or ""
    path = environ.get(EP_PATH_VARIABLE) or None
    return checked_engine(name, path)


def checked_engine(name: str, path: str | None) -> tuple[EngineName, str | None]:
    """Check an engine and a path like `engine_of`, if they do not come from the environment. '' means not set."""
    known = next((engine for engine in ENGINES if engine == (name or "auto").strip().lower()), None)
    if known is None:
        raise OptionError(
            f"The engine {name!r} does not exist.",
            cause="The engine is the source from which the host loads QNN.",
            fix=f"Use one of {', '.join(ENGINES)} (engine=, {ENGINE_VARIABLE}, or [host] engine in config.toml).",
            details={"option": "engine", "value": name},
        )
    if path is None and known == "folder":
        raise OptionError(
            "The engine is 'folder', but no folder is given.",
            fix=f"Give the folder of the provider's library: ep_path=, {EP_PATH_VARIABLE}, or [host] ep_path.",
            details={"option": "ep_path"},
        )
    if path is not None and known in ("wheel", "windowsml"):
        raise OptionError(
            f"The engine is {known!r}, but the folder of a provider is also given: {path}.",
            cause="Only the engine 'folder' loads QNN from a folder.",
            fix=f"Remove the engine to use the folder, or remove the folder (ep_path, {EP_PATH_VARIABLE}).",
            details={"option": "ep_path", "value": path},
        )
    return ("folder" if path is not None else known), path


def engine_variables(name: str | None, path: str | os.PathLike[str] | None) -> dict[str, str]:
    """Return the environment variables for a host with this setting. An empty value overrides a variable in the
    environment."""
    if name is None and path is None:
        return {}
    absolute = None if path is None else os.path.abspath(os.path.expanduser(path))
    engine, folder = checked_engine(name or "", absolute)
    return {ENGINE_VARIABLE: engine, EP_PATH_VARIABLE: folder or ""}


# --- the cache -------------------------------------------------------------------------------------------

SWITCH_VARIABLE: Final = "QNNBRIDGE_CACHE"
FOLDER_VARIABLE: Final = "QNNBRIDGE_CACHE_DIR"
STATE_DIR_VARIABLE: Final = "QNNBRIDGE_STATE_DIR"
MODELS_DIR_VARIABLE: Final = "QNNBRIDGE_MODELS_DIR"
MAX_BYTES_VARIABLE: Final = "QNNBRIDGE_CACHE_MAX_BYTES"
MIN_MODEL_BYTES_VARIABLE: Final = "QNNBRIDGE_CACHE_MIN_MODEL_BYTES"

MAX_BYTES: Final = 10 * 1024**3
# Compiling a smaller model usually takes less time than starting the process that compiles for the cache.
MIN_MODEL_BYTES: Final = 16 * 1024

_OFF: Final = frozenset(("0", "off", "no", "false"))
_SIZE: Final = r"\s*([0-9]{1,18})\s*([kmgt]?)(?:i?b)?\s*"
_FACTORS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def cache_settings(environ: Mapping[str, str] | None = None, wanted: bool | None = None) -> CacheSettings:
    """Return the cache settings from environment variables. `problems` lists variables with unusable values."""
    from qnnbridge_protocol.model_records import CacheSettings

    env = os.environ if environ is None else environ
    problems: list[str] = []
    return CacheSettings(
        folder=os.fspath(cache_dir(env)),
        wanted=wanted,
        enabled=env.get(SWITCH_VARIABLE, "").strip().lower() not in _OFF,
        max_bytes=_size(env, MAX_BYTES_VARIABLE, MAX_BYTES, problems),
        min_model_bytes=_size(env, MIN_MODEL_BYTES_VARIABLE, MIN_MODEL_BYTES, problems),
        problems=tuple(problems),
    )


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the cache folder, which need not exist. ``QNNBRIDGE_CACHE_DIR`` overrides the system's default."""
    return _own_folder("cache", FOLDER_VARIABLE, os.environ if environ is None else environ)


def state_dir() -> Path:
    """Return the folder of quarantine, crash reports and logs; ``QNNBRIDGE_STATE_DIR`` overrides it."""
    return _own_folder("state", STATE_DIR_VARIABLE, os.environ)


def models_dir() -> Path:
    """Return the folder of the models that `qnnbridge pull` downloads; ``QNNBRIDGE_MODELS_DIR`` overrides it."""
    folder = _own_folder("data", MODELS_DIR_VARIABLE, os.environ)
    # Windows uses one folder for data, caches and state, so the models get a subfolder.
    return folder if os.environ.get(MODELS_DIR_VARIABLE) else folder / "models"


def _own_folder(kind: Literal["cache", "state", "data"], variable: str, environ: Mapping[str, str]) -> Path:
    from pathlib import Path

    override = environ.get(variable)
    if override:
        return Path(os.path.abspath(os.path.expanduser(override)))
    import platformdirs

    system = {
        "cache": platformdirs.user_cache_dir,
        "state": platformdirs.user_state_dir,
        "data": platformdirs.user_data_dir,
    }[kind]
    try:
        folder = Path(system("qnnbridge", appauthor=False))
    except RuntimeError:
        return _folder_without_home(kind)
    # Older releases of platformdirs return paths with "~" if the home folder is unknown.
    return folder if folder.is_absolute() else _folder_without_home(kind)


def _folder_without_home(kind: str) -> Path:
    """Return a folder for a user without a home folder, as in services and containers.

    The result is in the folder for temporary files. If another user has created a folder with the same name, the
    result is an unusable path, so that nothing is stored.
    """
    import tempfile
    from pathlib import Path

    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir(), f"qnnbridge-{user}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        private = status.st_uid == user and not status.st_mode & 0o077 and not folder.is_symlink()
    except OSError:
        private = False
    return folder / kind if private else Path(os.devnull, "qnnbridge", kind)


def parse_size(text: str) -> int | None:
    """Convert a size such as ``500M``, ``10 GiB`` or ``123`` to bytes; ``None`` for an invalid size. Units are
    powers of 1024."""
    import re

    found = re.fullmatch(_SIZE, text, re.IGNORECASE)
    return None if found is None else int(found[1]) * _FACTORS[found[2].lower()]


def _size(env: Mapping[str, str], name: str, default: int, problems: list[str]) -> int:
    text = env.get(name, "").strip()
    if not text:
        return default
    size = parse_size(text)
    if size is None:
        problems.append(f"{name}={text!r} is not a size (write bytes, or 500M, 10G); {default} is used.")
        return default
    return size
