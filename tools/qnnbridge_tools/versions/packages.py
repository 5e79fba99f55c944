"""Packages of a host's environment: the requirements for pip, and recognition of pip's errors for an
unreachable index.

Also the releases of Windows ML's two packages. Nothing is installed here.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.machine import CATALOGUE_DISTRIBUTION
from qnnbridge_host.model.releases import Release, for_version, is_final, satisfies
from qnnbridge_os.missing import why_missing
from qnnbridge_protocol import __version__
from qnnbridge_protocol.errors import BridgeError, NoSuchFile, OptionError
from qnnbridge_protocol.field_types import read_document
from qnnbridge_protocol.installing import PACKAGE, installed_from
from qnnbridge_tools.versions.fitness import OLDEST_ORT_FOR_PLUGINS, ort_bounds

# Releases of onnxruntime-qnn that the extra [host] allows. The same bound as in pyproject.toml.
HOST_EXTRA_TAKES = ">=2.4"

# Packages of the extra [host] besides onnxruntime, for releases that the extra does not allow.
COMPANIONS = ("onnx>=1.16", "ml_dtypes>=0.4")


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Origin of the qnnbridge to install.

    Args:
        path: a wheel, an sdist or a checkout; ``None``: the package index.
        editable: install the checkout in editable mode.
        links: folder of wheels that replaces the package index for all packages.
    """

    path: Path | None = None
    editable: bool = False
    links: Path | None = None

    @property
    def index_words(self) -> tuple[str, ...]:
        """Options of pip that select the source of all packages."""
        return ("--no-index", "--find-links", str(self.links)) if self.links is not None else ()

    @property
    def text(self) -> str:
        if self.path is None:
            return f"{self.links or 'the package index'}, version {__version__}"
        return f"{self.path}" + (" (editable)" if self.editable else "")


def find_source(given: Path | None) -> Source:
    """Return the given path; else the origin of this installation of qnnbridge; else the index."""
    links = None
    if given is not None:
        if not _is_folder_of_wheels(given):
            return _given(given)
        links = given.absolute()
        own = sorted(links.glob(f"{PACKAGE}-{__version__}-*.whl"))
        if own:
            return Source(own[0], links=links)
    # An unreleased version is not on an index: the host gets what the application was installed from.
    origin = installed_from()
    found = Source(Path(origin.path), editable=origin.editable) if origin is not None else Source()
    return dataclasses.replace(found, links=links)


def requirements(release: Release, source: Source, *, origin: str = "") -> list[str]:
    """Return the arguments of ``pip install``.

    Args:
        release: release of onnxruntime-qnn.
        source: origin of qnnbridge.
        origin: path of qnnbridge in the notation of another computer.
    """
    extra = satisfies(release.version, HOST_EXTRA_TAKES)
    own = [f"{origin}{'[host]' if extra else ''}"] if origin else _own(source, "[host]" if extra else "")
    words = [*own, f"onnxruntime-qnn=={release.version}"]
    if extra:
        return words
    if release.layout == "2.x plugin":
        words.append(f"onnxruntime{ort_bounds(release)}")
    # Do not use the extra [host]: it would install plain onnxruntime, whose files a 1.x release overwrites, because
    # both contain the package `onnxruntime`.
    return [*words, *COMPANIONS]


def requirements_without_qnn(source: Source, provider: str | None, *, catalogue: bool) -> list[str]:
    """Return the arguments of ``pip install`` for a host with QNN from a provider's folder or from Windows.

    They omit the extra [host], which would install onnxruntime-qnn.

    Args:
        source: origin of qnnbridge.
        provider: release of the onnxruntime-qnn in a folder.
        catalogue: add the package that reads the catalogue of Windows.
    """
    # If the table contains the provider's release, install the onnxruntime that its wheel requires.
    known = next((one for one in for_version(provider) if one.layout == "2.x plugin"), None) if provider else None
    bounds = f">={OLDEST_ORT_FOR_PLUGINS}" if known is None else ort_bounds(known)
    words = [*_own(source, ""), f"onnxruntime{bounds}", *COMPANIONS]
    return [*words, CATALOGUE_DISTRIBUTION] if catalogue else words


def _own(source: Source, extra: str) -> list[str]:
    if source.path is None:
        return [f"{PACKAGE}{extra}=={__version__}"]
    if source.editable:
        return ["--editable", f"{source.path}{extra}"]
    # Use the syntax of PEP 508 for an extra of a local path.
    return [f"{PACKAGE}{extra} @ {source.path.as_uri()}"]


def _is_folder_of_wheels(path: Path) -> bool:
    return path.is_dir() and not (path / "pyproject.toml").is_file() and any(path.glob("*.whl"))


def _given(path: Path) -> Source:
    if not path.exists():
        raise NoSuchFile(f"The path {path} of --from does not exist.", **why_missing(path))
    if path.is_dir() and not (path / "pyproject.toml").is_file():
        raise OptionError(
            f"The folder {path} of --from contains neither pyproject.toml nor wheels.",
            fix="Give a wheel, an sdist, the folder of a checkout of qnnbridge, or a folder of wheels.",
        )
    if path.is_file() and not path.name.endswith((".whl", ".tar.gz", ".zip")):
        raise OptionError(
            f"The file {path} of --from is neither a wheel nor an sdist.", fix="Give a .whl, .tar.gz or .zip file."
        )
    return Source(path.absolute())


# --- Windows ML: `scripts/makers/windows_ml.py` reads its table from the wheels of both packages ---

# Package that reads the catalogue of Windows.
READER: Final = "windowsml"
# Package with an onnxruntime for the catalogue's providers.
RUNTIME: Final = "onnxruntime-windowsml"
TABLE: Final = Path(__file__).with_name("windows_ml.json")


@dataclasses.dataclass(frozen=True, slots=True)
class MlRelease:
    """One release of a Windows ML package.

    Args:
        python: tags of its wheels; ``py3`` for every version that `requires_python` allows.
        onnxruntime: version of onnxruntime that it contains, or the onnxruntime-windowsml that its extra
            ``with-ort`` installs.
    """

    package: str
    version: str
    platforms: tuple[str, ...]
    python: tuple[str, ...]
    requires_python: str
    onnxruntime: str | None
    wheels: tuple[dict[str, Any], ...]

    def has_wheel_for(self, platform: str, python: tuple[int, int] | None) -> bool:
        if platform not in self.platforms:
            return False
        if python is None:
            return True
        if self.requires_python and not satisfies("{}.{}".format(*python), self.requires_python):
            return False
        return bool({"py3", "cp{}{}".format(*python)} & set(self.python))


@functools.cache
def ml_releases() -> tuple[MlRelease, ...]:
    """Return all releases of the table, by package, the newest first."""
    entries = json.loads(TABLE.read_text("utf-8"))["releases"]
    return tuple(read_document(MlRelease, entry, "a release") for entry in entries)


def newest(package: str, platform: str, python: tuple[int, int] | None = None) -> MlRelease | None:
    """Return the newest final release with a wheel for this interpreter."""
    return next(
        (
            one
            for one in ml_releases()
            if one.package == package and is_final(one.version) and one.has_wheel_for(platform, python)
        ),
        None,
    )


# --- the index cannot be reached ---

SHOWN_LINES = 8

# pip ends with 1 for every error, so network errors are recognised by their text.
_NETWORK_WORDS = (
    "retrying (",
    "could not fetch url",
    "connectionerror",
    "timed out",
    "name resolution",
    "proxyerror",
)


class IndexUnreachable(BridgeError):
    """pip could not reach its index, so it is unknown whether the index contains the packages."""


def is_network_trouble(text: str) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in _NETWORK_WORDS)


def unreachable(text: str) -> IndexUnreachable:
    return IndexUnreachable(
        "The package index cannot be reached.",
        cause="pip received no answer from its configured index.",
        fix="Check the network, and the index and proxy in `pip config list`.",
        evidence=[line for line in text.splitlines() if is_network_trouble(line)][-SHOWN_LINES:]
        or last_lines(text),
    )


def last_lines(text: str) -> Sequence[str]:
    return [line for line in text.splitlines() if line.strip()][-SHOWN_LINES:]
