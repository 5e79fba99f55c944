"""Find QNN's provider library: in the wheel of onnxruntime-qnn, in Windows' catalogue of providers, or in a folder.

If the settings choose a source, no other source is tried. Without a setting, the first available source is used, in
this order: the wheel, whose release is known and fixed; then the catalogue, if its provider is ready or can be
prepared without a network. `QnnSource.reason` records why a source was chosen. This module does not load the
library. Pure functions of the environment, the disk and the catalogue.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.machine import CATALOGUE_DISTRIBUTION, QNN_DISTRIBUTION, Installed, build_info
from qnnbridge_protocol.errors import ProviderUnavailable
from qnnbridge_protocol.installing import install_command
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.settings import ENGINE_VARIABLE, EP_PATH_VARIABLE, engine_of

if TYPE_CHECKING:
    import mmap

    from qnnbridge_host.windows_ml import CatalogueEntry
    from qnnbridge_protocol.settings import EngineName


# File name of the provider in the wheels and in Windows' packages.
_LIBRARIES: Final = (
    "onnxruntime_providers_qnn.dll",
    "onnxruntime_providers_qnn_abi.dll",
    "libonnxruntime_providers_qnn.so",
    "libonnxruntime_providers_qnn_abi.so",
)
WINDOWS_ML: Final = "Windows ML"


class QnnSource(NamedTuple):
    """Origin of QNN in this process.

    Attributes:
        engine: "wheel", "windowsml" or "folder".
        library: path of the provider's file.
        name: name of the source in messages.
        version: release of the installed onnxruntime-qnn, or the version in the catalogue of Windows.
        package: package family for "windowsml", otherwise the Python distribution.
        sdk: build or version of the QNN SDK.
        release: release of onnxruntime-qnn as read from a file; ``None`` if no file contains it.
        reason: why this source was chosen.
    """

    engine: EngineName
    library: str
    name: str
    version: str | None = None
    package: str | None = None
    sdk: str | None = None
    release: str | None = None
    reason: str = ""

    @property
    def words(self) -> str:
        """Name and versions of the source for messages, such as ``onnxruntime-qnn 2.7.0, QNN 2.51.0``."""
        text = f"{self.name} {self.version}" if self.version else self.name
        return text + (f", QNN {'.'.join(self.sdk.split('.')[:3])}" if self.sdk else "")

    def versions(self) -> dict[str, str]:
        """Return the known versions of this source for `HostInfo.versions`; a compiled model depends on them."""
        parts = {
            "onnxruntime_qnn": self.release,
            "qnn_sdk": self.sdk,
            "ep_source": self.engine,
            "ep_version": self.version,
            "ep_package": self.package,
        }
        return {name: text for name, text in parts.items() if text}

    def to_wire(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in self._fields}, "words": self.words}


ReadyQnn = Callable[[], "CatalogueEntry"]


def choose(found: Installed, environ: Mapping[str, str] | None = None, ready: ReadyQnn | None = None) -> QnnSource:
    """Return the source of QNN for this process, in which QNN is a plugin.

    Args:
        found: the installed packages.
        environ: the environment variables with the setting; default: `os.environ`.
        ready: a function that returns the catalogue's provider; default: `windows_ml.ready_qnn`, which downloads
            nothing.

    Raises:
        ProviderUnavailable: the source in the settings cannot be used, or no source is available.
        OptionError: the setting is invalid.
    """
    env = os.environ if environ is None else environ
    engine, path = engine_of(env)
    if engine == "folder" and path is not None:
        return _of_folder(path, f"{EP_PATH_VARIABLE} is set to it")
    if engine == "wheel":
        return _of_wheel(found, f"{ENGINE_VARIABLE}=wheel")
    if engine == "windowsml":
        return _of_catalogue((ready or _ready)(), f"{ENGINE_VARIABLE}=windowsml")
    if found.generation == "plugin":
        return _of_wheel(
            found, "onnxruntime-qnn is installed together with onnxruntime, and the settings choose no other source"
        )
    if CATALOGUE_DISTRIBUTION not in found.distributions:
        raise _none(found)
    why = found.problem or "onnxruntime-qnn is not installed"
    return _of_catalogue(
        (ready or _ready)(), f"{why.rstrip('.')}, but the catalogue of Windows contains a provider"
    )


def _ready() -> CatalogueEntry:
    from qnnbridge_host.windows_ml import ready_qnn

    return ready_qnn()


def _of_wheel(found: Installed, reason: str) -> QnnSource:
    if found.generation != "plugin":
        raise _none(found)
    import onnxruntime_qnn as package

    release = found.onnxruntime_qnn
    library = package.get_library_path()
    return QnnSource("wheel", library, QNN_DISTRIBUTION, release, QNN_DISTRIBUTION, found.qnn_sdk, release, reason)


def _of_catalogue(entry: CatalogueEntry, reason: str) -> QnnSource:
    sdk = build_in(os.path.dirname(entry.library))
    name = f"{WINDOWS_ML} {entry.name}"
    return QnnSource("windowsml", entry.library, name, entry.version, entry.package, sdk, None, reason)


def _of_folder(path: str, reason: str) -> QnnSource:
    library = _library_in(os.path.abspath(os.path.expanduser(path)))
    folder = os.path.dirname(library)
    info = build_info(folder)
    release = info.get("__version__") if info.get("package_name") == QNN_DISTRIBUTION else None
    sdk = build_in(folder) or info.get("qnn_version")
    return QnnSource(
        "folder", library, f"the provider in {folder}", release, info.get("package_name"), sdk, release, reason
    )


def _library_in(path: str) -> str:
    """Return the provider's file: the path itself, or a file in the folder or its direct subfolders."""
    if os.path.isfile(path):
        return path
    for folder in (path, *_folders_in(path)):
        for name in _LIBRARIES:
            if os.path.isfile(os.path.join(folder, name)):
                return os.path.join(folder, name)
    there = os.path.isdir(path)
    raise ProviderUnavailable(
        f"{path} does not contain a QNN provider's library." if there else f"{path} does not exist.",
        cause=f"Searched for {', '.join(_LIBRARIES[::2])} in the folder and its subfolders." if there else None,
        fix=f"Set {EP_PATH_VARIABLE} or ep_path= to the provider's library or its folder.",
        details={"engine": "folder", "path": path},
    )


def _folders_in(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir())
    except OSError:
        return []


def _none(found: Installed) -> ProviderUnavailable:
    if found.onnxruntime_qnn:
        cause, verb = found.problem, "Reinstall"
    else:
        cause, verb = f"onnxruntime-qnn is not installed in {sys.executable}.", "Install"
    other = "`pip install windowsml` adds the provider of Windows. Or: " if sys.platform == "win32" else ""
    return ProviderUnavailable(
        "QNN is not available on this host.",
        cause=cause,
        fix=f"{other}{verb} it there: {install_command('host', python=sys.executable)}",
    )


# --- the SDK build of a QNN library ----------------------------------------------------------------------

# QNN's build id consists of the release, the time of the build (yymmddhhmmss), and in some releases a number, such
# as ``2.37.1.250807093845_124904``. An ELF library contains it only as a string with the prefix v.
_BUILD: Final = re.compile(rb"v(\d\.\d{1,3}\.\d{1,3}\.\d{12}(?:_\d+)?)")
_RESOURCE_NAME: Final = "ProductVersion".encode("utf-16-le")
_RESOURCE_TEXT: Final = re.compile(r"\d+\.\d+\.\d+\.\d{6,}(?:_\d+)?")
_RESOURCE_CHARACTERS: Final = 64
_BACKENDS: Final = ("QnnHtp.dll", "libQnnHtp.so", "QnnSystem.dll", "libQnnSystem.so")


def build_of(path: str | os.PathLike[str]) -> str | None:
    """Return the build id from the version resource of a PE file, else from a string in the file; ``None`` if it is
    missing.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is empty.
    """
    import mmap  # import it here because a session does not need it

    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _resource_version(data) or _text_version(data)


def build_in(folder: str | os.PathLike[str]) -> str | None:
    """Return the build id of the libraries in a folder; ``None`` if no file contains a build id."""
    for name in _BACKENDS:
        try:
            found = build_of(os.path.join(folder, name))
        except (OSError, ValueError):  # the file is missing or empty
            continue
        if found:
            return found
    return None


def _resource_version(data: mmap.mmap) -> str | None:
    start = data.rfind(_RESOURCE_NAME)
    if start < 0:
        return None
    # A version resource contains the key, then padding to 32 bits, then the value, all in UTF-16.
    start += len(_RESOURCE_NAME)
    text = data[start : start + 2 * _RESOURCE_CHARACTERS].decode("utf-16-le", "replace")
    found = _RESOURCE_TEXT.search(text)
    return found[0] if found else None


def _text_version(data: mmap.mmap) -> str | None:
    # If the file contains several ids, it is unknown which one is the library's own, so return ``None``.
    found = {match[1] for match in _BUILD.finditer(data)}
    return found.pop().decode("ascii") if len(found) == 1 else None
