"""Which QNN a host takes, as the application says it to the host: by environment variables.

The host imports this before HELLO, and so without `typing`.
"""

from __future__ import annotations

import os

from qnnbridge_protocol.errors import OptionError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final, Literal

    EngineName = Literal["auto", "wheel", "windowsml", "folder"]

ENGINE_VARIABLE: Final = "QNNBRIDGE_ENGINE"
EP_PATH_VARIABLE: Final = "QNNBRIDGE_EP_PATH"

# auto: the host chooses. wheel: onnxruntime-qnn. windowsml: the catalogue of Windows. folder: one that is named.
ENGINES: Final[tuple[EngineName, ...]] = ("auto", "wheel", "windowsml", "folder")


def engine_of(environ: Mapping[str, str]) -> tuple[EngineName, str | None]:
    """The engine and the folder (or file) of the provider that an environment names. A path alone means "folder".

    Raises `OptionError` for a name that does not exist, and for two settings that exclude each other.
    """
    name = environ.get(ENGINE_VARIABLE) or ""
    path = environ.get(EP_PATH_VARIABLE) or None
    return checked_engine(name, path)


def checked_engine(name: str, path: str | None) -> tuple[EngineName, str | None]:
    """The same for values from elsewhere; "" is no name."""
    known = next((engine for engine in ENGINES if engine == (name or "auto").strip().lower()), None)
    if known is None:
        raise OptionError(
            f"There is no engine {name!r}.",
            cause="The engine says where the host takes QNN from.",
            fix=f"One of {', '.join(ENGINES)} (engine=, {ENGINE_VARIABLE}, or [host] engine in the file).",
            details={"option": "engine", "value": name},
        )
    if path is None and known == "folder":
        raise OptionError(
            "The engine is 'folder', and no folder is named.",
            fix=f"Name the folder of the provider's library: ep_path=, {EP_PATH_VARIABLE}, or [host] ep_path.",
            details={"option": "ep_path"},
        )
    if path is not None and known in ("wheel", "windowsml"):
        raise OptionError(
            f"The engine is {known!r}, and a folder of a provider is named as well: {path}.",
            cause="Only the engine 'folder' takes QNN from a folder.",
            fix=f"Leave out the engine to use the folder, or the folder (ep_path, {EP_PATH_VARIABLE}).",
            details={"option": "ep_path", "value": path},
        )
    return ("folder" if path is not None else known), path


def engine_variables(name: str | None, path: str | os.PathLike[str] | None) -> dict[str, str]:
    """The variables for a host with this setting. An empty text takes a setting of the environment away."""
    if name is None and path is None:
        return {}
    absolute = None if path is None else os.path.abspath(os.path.expanduser(path))
    engine, folder = checked_engine(name or "", absolute)
    return {ENGINE_VARIABLE: engine, EP_PATH_VARIABLE: folder or ""}


__all__ = ["ENGINES", "checked_engine", "engine_of", "engine_variables"]
