"""The packages of a host's environment: what pip takes to install them, and what it says without its index.

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
from qnnbridge_protocol import __version__
from qnnbridge_protocol.errors import BridgeError, NoSuchFile, OptionError
from qnnbridge_protocol.field_types import read_document
from qnnbridge_protocol.installing import PACKAGE, installed_from
from qnnbridge_tools.versions.fitness import OLDEST_ORT_FOR_PLUGINS, ort_bounds

# The releases of onnxruntime-qnn that the extra [host] allows.
# The same bound as in pyproject.toml.
HOST_EXTRA_TAKES = ">=2.4"

# What the extra [host] brings besides onnxruntime, for the releases that it does not allow.
COMPANIONS = ("onnx>=1.16", "ml_dtypes>=0.4")


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """The origin of qnnbridge itself. path: a wheel, an sdist or a checkout; ``None``: the package index.

    links: a folder of wheels that replaces the package index, for everything.
    """

    path: Path | None = None
    editable: bool = False
    links: Path | None = None

    @property
    def index_words(self) -> tuple[str, ...]:
        """pip's options for the place of all packages."""
        return ("--no-index", "--find-links", str(self.links)) if self.links is not None else ()

    @property
    def text(self) -> str:
        if self.path is None:
            return f"{self.links or 'the package index'}, version {__version__}"
        return f"{self.path}" + (" (editable)" if self.editable else "")


def find_source(given: Path | None) -> Source:
    """The path that was given; else what this very qnnbridge was installed from; else the index."""
    links = None
    if given is not None:
        if not _is_folder_of_wheels(given):
            return _given(given)
        links = given.absolute()
        own = sorted(links.glob(f"{PACKAGE}-{__version__}-*.whl"))
        if own:
            return Source(own[0], links=links)
    # A version that is not released is on no index: the host gets what the application was installed from.
    origin = installed_from()
    found = Source(Path(origin.path), editable=origin.editable) if origin is not None else Source()
    return dataclasses.replace(found, links=links)


def requirements(release: Release, source: Source, *, origin: str = "") -> list[str]:
    """The words after ``pip install``. origin: the path of qnnbridge as another computer writes it."""
    extra = satisfies(release.version, HOST_EXTRA_TAKES)
    own = [f"{origin}{'[host]' if extra else ''}"] if origin else _own(source, "[host]" if extra else "")
    words = [*own, f"onnxruntime-qnn=={release.version}"]
    if extra:
        return words
    if release.layout == "2.x plugin":
        words.append(f"onnxruntime{ort_bounds(release)}")
    # Not the extra: with a 1.x release the plain onnxruntime must stay out, both are the package `onnxruntime`.
    return [*words, *COMPANIONS]


def requirements_without_qnn(source: Source, provider: str | None, *, catalogue: bool) -> list[str]:
    """The words for a host that takes QNN from elsewhere. provider: the release of onnxruntime-qnn in a folder.

    Not the extra, which brings onnxruntime-qnn. catalogue: with the package that reads the catalogue of Windows.
    """
    # The provider in a folder decides which onnxruntime takes it, as its wheel would.
    known = next((one for one in for_version(provider) if one.layout == "2.x plugin"), None) if provider else None
    bounds = f">={OLDEST_ORT_FOR_PLUGINS}" if known is None else ort_bounds(known)
    words = [*_own(source, ""), f"onnxruntime{bounds}", *COMPANIONS]
    return [*words, CATALOGUE_DISTRIBUTION] if catalogue else words


def _own(source: Source, extra: str) -> list[str]:
    if source.path is None:
        return [f"{PACKAGE}{extra}=={__version__}"]
    if source.editable:
        return ["--editable", f"{source.path}{extra}"]
    # The form in which PEP 508 lets a file have extras.
    return [f"{PACKAGE}{extra} @ {source.path.as_uri()}"]


def _is_folder_of_wheels(path: Path) -> bool:
    return path.is_dir() and not (path / "pyproject.toml").is_file() and any(path.glob("*.whl"))


def _given(path: Path) -> Source:
    if not path.exists():
        raise NoSuchFile(f"--from names {path}, which does not exist.")
    if path.is_dir() and not (path / "pyproject.toml").is_file():
        raise OptionError(
            f"--from names the folder {path}, which holds neither pyproject.toml nor wheels.",
            fix="Give a wheel, an sdist, the folder of a checkout of qnnbridge, or a folder of wheels.",
        )
    if path.is_file() and not path.name.endswith((".whl", ".tar.gz", ".zip")):
        raise OptionError(f"--from names {path}, which is neither a wheel nor an sdist.")
    return Source(path.absolute())


# --- Windows ML: `scripts/makers/windows_ml.py` reads its table from the wheels of both packages ---

# It reads the catalogue of Windows.
READER: Final = "windowsml"
# An onnxruntime for the providers of the catalogue.
RUNTIME: Final = "onnxruntime-windowsml"
TABLE: Final = Path(__file__).with_name("windows_ml.json")


@dataclasses.dataclass(frozen=True, slots=True)
class MlRelease:
    """One release. python: tags of its wheels, ``py3`` for every one that `requires_python` allows.

    onnxruntime: the release of it that it is, or the onnxruntime-windowsml that its extra ``with-ort`` installs.
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
    """All in the table, by package, the newest first."""
    entries = json.loads(TABLE.read_text("utf-8"))["releases"]
    return tuple(read_document(MlRelease, entry, "a release") for entry in entries)


def newest(package: str, platform: str, python: tuple[int, int] | None = None) -> MlRelease | None:
    """The newest final release with a wheel for this interpreter."""
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

# pip ends with 1 for everything, so its words have to tell the network from the rest.
_NETWORK_WORDS = (
    "retrying (",
    "could not fetch url",
    "connectionerror",
    "timed out",
    "name resolution",
    "proxyerror",
)


class IndexUnreachable(BridgeError):
    """pip could not ask its index; says nothing about what is on it."""


def is_network_trouble(text: str) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in _NETWORK_WORDS)


def unreachable(text: str) -> IndexUnreachable:
    return IndexUnreachable(
        "The package index cannot be reached.",
        cause="pip got no answer from the index that it is configured for.",
        fix="Check the network, and what `pip config list` names as index and proxy.",
        evidence=[line for line in text.splitlines() if is_network_trouble(line)][-SHOWN_LINES:]
        or last_lines(text),
    )


def last_lines(text: str) -> Sequence[str]:
    return [line for line in text.splitlines() if line.strip()][-SHOWN_LINES:]
