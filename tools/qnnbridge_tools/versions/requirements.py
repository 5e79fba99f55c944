"""The requirements of the host's environment, as pip takes them. Installs nothing."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
from pathlib import Path
from urllib.parse import unquote, urlparse
from urllib.request import url2pathname

from qnnbridge_host.machine import CATALOGUE_DISTRIBUTION
from qnnbridge_host.model.releases import Release, for_version, satisfies
from qnnbridge_protocol import __version__
from qnnbridge_protocol.errors import NoSuchFile, OptionError
from qnnbridge_tools.versions.fitness import OLDEST_ORT_FOR_PLUGINS, ort_bounds

PACKAGE = "qnnbridge"
# The releases of onnxruntime-qnn that the extra [host] allows.
# The same bound as in pyproject.toml.
HOST_EXTRA_TAKES = ">=2.4"

# What the extra [host] brings besides onnxruntime, for the releases that it does not allow.
COMPANIONS = ("onnx>=1.16", "ml_dtypes>=0.4")


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """The origin of qnnbridge itself. path: a wheel, an sdist or a checkout; ``None``: the package index."""

    path: Path | None = None
    editable: bool = False

    @property
    def text(self) -> str:
        if self.path is None:
            return f"the package index, version {__version__}"
        return f"{self.path}" + (" (editable)" if self.editable else "")


def find_source(given: Path | None) -> Source:
    """The path that was given; else what this very qnnbridge was installed from; else the index."""
    if given is not None:
        return _given(given)
    installed = _installed_from()
    return installed if installed is not None and installed.path is not None else Source()


def requirements(release: Release, source: Source) -> list[str]:
    """The words after ``pip install``."""
    extra = satisfies(release.version, HOST_EXTRA_TAKES)
    words = [*_own(source, "[host]" if extra else ""), f"onnxruntime-qnn=={release.version}"]
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
    return [f"{PACKAGE}{extra} @ {source.path.as_uri()}"]


def _given(path: Path) -> Source:
    if not path.exists():
        raise NoSuchFile(f"--from names {path}, which does not exist.")
    if path.is_dir() and not (path / "pyproject.toml").is_file():
        raise OptionError(
            f"--from names the folder {path}, which holds no pyproject.toml.",
            fix="Give a wheel, an sdist, or the folder of a checkout of qnnbridge.",
        )
    if path.is_file() and not path.name.endswith((".whl", ".tar.gz", ".zip")):
        raise OptionError(f"--from names {path}, which is neither a wheel nor an sdist.")
    return Source(path.absolute())


def _installed_from() -> Source | None:
    """pip notes where it got a package from, unless that was the index."""
    try:
        text = importlib.metadata.distribution(PACKAGE).read_text("direct_url.json")
        record = json.loads(text) if text else {}
        url = urlparse(record.get("url", ""))
        if url.scheme != "file":
            return None
        path = Path(url2pathname(unquote(url.path) if os.name != "nt" else url.path))
    except (importlib.metadata.PackageNotFoundError, ValueError, OSError):
        return None
    if not path.exists():
        return None
    # PEP 610 marks an editable installation of a folder.
    return Source(path, editable=bool(record.get("dir_info", {}).get("editable")))
