"""A model repository on a hub: its files, reading parts of them, downloading them whole.

Everything that can go wrong becomes one `BridgeError` with the way out. huggingface_hub is imported when a hub is
first asked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import importlib
import io
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from qnnbridge_host.model.source import hash_file
from qnnbridge_protocol.errors import OptionError, PullFailed
from qnnbridge_protocol.installing import install_command

_DEFAULT_ENDPOINT: Final = "https://huggingface.co"
# One request of a distant file reads this much.
_BLOCK_BYTES: Final = 256 * 1024
_CHUNK_BYTES: Final = 1024 * 1024
_PROXIES: Final = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy")
# Ends the names of files that are not complete.
PART: Final = ".qnnbridge-part"


@dataclasses.dataclass(frozen=True, slots=True)
class RepoFile:
    """sha256: of a file that the hub keeps outside of git. blob: git's hash of any other. Empty if not known."""

    name: str
    size: int
    sha256: str = ""
    blob: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class HubRepository:
    """One commit of a model repository. revision: as it was asked for."""

    name: str
    revision: str | None
    commit: str
    files: Mapping[str, RepoFile]

    @property
    def label(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name


def parse_name(name: str, revision: str | None, endpoint: str) -> tuple[str, str | None]:
    """Split ``OWNER/NAME@REVISION`` or a page's address into name and revision. Raise `OptionError`."""
    text = name.strip()
    for start in (endpoint, _DEFAULT_ENDPOINT):
        text = text.removeprefix(start.rstrip("/") + "/")
    text, _, written = text.partition("@")
    if written and revision and written != revision:
        raise OptionError(f"Two revisions are given: {written} and {revision}.", fix="Give one of them.")
    parts = text.strip("/").split("/")
    if len(parts) > 3 and parts[2] == "tree":
        written, parts = written or "/".join(parts[3:]), parts[:2]
    if len(parts) > 2 or not all(parts) or "\\" in text or text.startswith(("/", ".")):
        raise OptionError(
            f'"{name}" is not the name of a model repository.',
            fix="Give OWNER/NAME, as on the page of the model.",
        )
    return "/".join(parts), revision or written or None


class Hub:
    """A connection to a hub. Create one for each pull.

    token: overrides ``HF_TOKEN`` and the token of `hf auth login`.
    """

    def __init__(self, token: str | None = None) -> None:
        try:
            self._hub: Any = importlib.import_module("huggingface_hub")
            for part in ("errors", "file_download", "utils"):
                importlib.import_module(f"huggingface_hub.{part}")
        except ImportError as error:
            raise PullFailed(
                f"qnnbridge pull needs {error.name}, which this Python does not have: {sys.executable}.",
                cause="It works with the packages of the extra [hub].",
                fix=install_command("hub", python=sys.executable),
                details={"reason": "packages"},
            ) from None
        # Of httpx or its successor, whichever this huggingface_hub uses.
        bases = self._hub.errors.HfHubHTTPError.__mro__
        self._network: Any = next(one for one in bases if one.__name__ == "HTTPError")
        # Now, and not when huggingface_hub was imported.
        self.endpoint = hub_endpoint()
        self._token = token

    def repository(self, name: str, revision: str | None) -> HubRepository:
        """List the files of a repository. Raise `OptionError` for an unknown name or revision, and `PullFailed`."""
        with self._errors(name, revision):
            api = self._hub.HfApi(endpoint=self.endpoint, token=self._token, library_name="qnnbridge")
            info = api.model_info(name, revision=revision, files_metadata=True, timeout=30)
        # It becomes part of a path.
        if not re.fullmatch("[0-9a-f]{40,64}", str(info.sha)):
            raise PullFailed(
                f"The hub {self.endpoint} gives {name} the commit {str(info.sha)!r}, which is none.",
                fix="Correct HF_ENDPOINT, or unset it.",
                details={"reason": "refused"},
            )
        files = {}
        for one in info.siblings or ():
            lfs = getattr(one, "lfs", None)
            sha256 = str(getattr(lfs, "sha256", "") or "")
            # git's hash of a file outside of git is that of its pointer.
            files[one.rfilename] = RepoFile(
                one.rfilename, int(one.size or 0), sha256, "" if sha256 else str(one.blob_id or "")
            )
        return HubRepository(name, revision, str(info.sha), files)

    def open(self, repository: HubRepository, file: str, requests: int) -> BinaryIO:
        """Open a distant file for reading parts of it. More than `requests` requests raise `EOFError`."""
        distant = _Distant(self, repository, repository.files[file], requests)
        return io.BufferedReader(distant, _BLOCK_BYTES)

    def read(self, repository: HubRepository, file: str, at: int, length: int) -> bytes:
        """Read a part of a distant file. Raise `PullFailed`."""
        address = self._address(repository, file)
        headers = {**self._headers(), "Range": f"bytes={at}-{at + length - 1}"}
        with self._errors(repository.name, repository.revision, file):
            session = self._hub.utils.get_session()
            with session.stream("GET", address, headers=headers, follow_redirects=True, timeout=30) as response:
                self._hub.utils.hf_raise_for_status(response)
                # A server without ranges sends the whole file, of which no more is read than was asked for.
                skip, found = (at if response.status_code == 200 else 0), bytearray()
                for chunk in response.iter_bytes():
                    found += chunk
                    if len(found) >= skip + length:
                        break
        return bytes(found[skip : skip + length])

    def download(self, repository: HubRepository, file: RepoFile, folder: Path) -> None:
        """Download a file into the folder, after what an earlier attempt left, and compare it with its checksum."""
        target = folder.joinpath(*file.name.split("/"))
        if target.exists():
            return  # it got its name after the comparison
        part = target.with_name(target.name + PART)
        with self._errors(repository.name, repository.revision, file.name), local_errors(folder):
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(part, "r+b" if part.exists() else "w+b") as out:
                if out.seek(0, os.SEEK_END) > file.size:
                    out.truncate(out.seek(0))
                while (have := out.tell()) < file.size:
                    try:
                        self._hub.file_download.http_get(
                            self._address(repository, file.name),
                            out,
                            resume_size=have,
                            headers=self._headers(),
                            expected_size=file.size,
                            displayed_filename=file.name,
                        )
                    # Releases of huggingface_hub before 2 give up at the first cut.
                    except self._network:
                        if out.seek(0, os.SEEK_END) <= have:
                            raise
            problem = _difference(part, file)
            if problem:
                part.unlink()
                raise PullFailed(
                    f"{file.name} of {repository.label} arrived damaged: {problem}.",
                    cause="A proxy or the network changed it, or the hub's copy is damaged.",
                    fix="Run the same command again: it downloads this file anew and keeps the others.",
                    details={"reason": "damaged", "file": file.name},
                )
            os.replace(part, target)

    def _address(self, repository: HubRepository, file: str) -> str:
        return str(self._hub.hf_hub_url(repository.name, file, revision=repository.commit, endpoint=self.endpoint))

    def _headers(self) -> dict[str, str]:
        made: dict[str, str] = self._hub.utils.build_hf_headers(token=self._token, library_name="qnnbridge")
        # Compressed bytes could be neither resumed nor counted.
        return {**made, "Accept-Encoding": "identity"}

    @contextlib.contextmanager
    def _errors(self, name: str, revision: str | None, file: str | None = None) -> Iterator[None]:
        known = self._hub.errors
        page = f"{self.endpoint}/{name}"
        try:
            yield
        except known.OfflineModeIsEnabled:
            raise offline_refused(name, "HF_HUB_OFFLINE is set") from None
        except known.GatedRepoError:
            raise PullFailed(
                f"{name} is gated: its owner gives it only to accounts that accepted its terms.",
                fix=f"Accept the terms at {page}, then give this computer a token of your account: hf auth login",
                details={"reason": "gated"},
            ) from None
        except known.RevisionNotFoundError:
            raise OptionError(
                f'{name} has no revision "{revision}".', fix=f"Choose a branch, tag or commit of {page}/commits"
            ) from None
        except known.RepositoryNotFoundError:
            raise OptionError(
                f"The hub shows no model repository {name}.",
                fix=f"Compare the name with {page}. For a private one give this computer a token: hf auth login",
            ) from None
        except known.HFValidationError:
            raise OptionError(
                f'"{name}" is not the name of a model repository.',
                fix="Give OWNER/NAME, as on the page of the model.",
            ) from None
        except known.HfHubHTTPError as error:
            raise self._refused(name, error.response, file) from None
        except self._network as error:
            raise _unreachable(self.endpoint, error, file) from None
        except OSError as error:
            # Of huggingface_hub itself, which counts the bytes.
            if error.errno is None and "Consistency check" in str(error):
                raise _unreachable(self.endpoint, error, file) from None
            raise

    def _refused(self, name: str, response: Any, file: str | None) -> PullFailed:
        status = int(response.status_code)
        what = f"{file} of {name}" if file else name
        if status in (401, 403):
            return PullFailed(
                f"The hub refuses {what} to this computer's token (HTTP {status}).",
                fix="Give it a token that may read the repository: hf auth login, or the variable HF_TOKEN.",
                details={"reason": "refused", "status": status},
            )
        if status == 429:
            wait = response.headers.get("Retry-After")
            return PullFailed(
                f"The hub answers no more requests for now (HTTP 429), and {what} was not downloaded.",
                fix=f"Wait {wait + ' seconds' if wait else 'some minutes'} and run the same command again; "
                "with a token (hf auth login) the limit is higher.",
                details={"reason": "limited", "status": status},
            )
        return PullFailed(
            f"The hub answered HTTP {status} for {what}.",
            fix="Run the same command again later: it goes on where it stopped.",
            details={"reason": "network", "status": status},
        )


class _Distant(io.RawIOBase):
    """A file on the hub, read by ranges."""

    def __init__(self, hub: Hub, repository: HubRepository, file: RepoFile, requests: int) -> None:
        super().__init__()
        self._hub, self._repository, self._file = hub, repository, file
        self._left, self._at = requests, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._file.size - self._at)
        if length <= 0:
            return 0
        if not self._left:
            raise EOFError(f"{self._file.name} takes too many requests to be looked at")
        self._left -= 1
        data = self._hub.read(self._repository, self._file.name, self._at, length)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def hub_endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or _DEFAULT_ENDPOINT


def is_offline() -> bool:
    """Return whether the user forbids the network, by huggingface_hub's variable."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in ("1", "ON", "YES", "TRUE")


def offline_refused(name: str, why: str) -> PullFailed:
    return PullFailed(
        f"{name} was not pulled to this computer before, and {why}.",
        fix="Pull it once with a network: without --offline and with HF_HUB_OFFLINE unset.",
        details={"reason": "offline"},
    )


def _unreachable(endpoint: str, error: Exception, file: str | None) -> PullFailed:
    text = str(error).strip() or type(error).__name__
    details = {"reason": "network"}
    if file is not None:
        return PullFailed(
            f"The download of {file} was cut.",
            cause=text.splitlines()[0],
            fix="Run the same command again: it goes on where it stopped.",
            details=details,
        )
    proxy = next((name for name in _PROXIES if os.environ.get(name)), "")
    if "CERTIFICATE_VERIFY_FAILED" in text:
        fix = "If a proxy of your company signs connections, name its certificate: set SSL_CERT_FILE to that file."
    elif type(error).__name__ == "ProxyError" or proxy:
        fix = f"Correct the address of the proxy in {proxy or 'HTTPS_PROXY'}, or unset the variable."
    else:
        fix = "Connect to the network. Behind a proxy set HTTPS_PROXY; for a mirror set HF_ENDPOINT."
    cause = text.splitlines()[0]
    return PullFailed(f"The hub {endpoint} cannot be reached.", cause=cause, fix=fix, details=details)


@contextlib.contextmanager
def local_errors(folder: Path) -> Iterator[None]:
    """Turn what the file system of the folder refuses into `PullFailed`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
            raise no_space(folder, None) from None
        if error.errno is None:  # of the network
            raise
        raise PullFailed(
            f"{error.filename or folder} cannot be written: {error.strerror or error}.",
            fix="Choose another folder for models: set QNNBRIDGE_MODELS_DIR.",
            details={"reason": "rights"},
        ) from None


def no_space(folder: Path, missing: str | None) -> PullFailed:
    return PullFailed(
        f"The disk of {folder} has too little space" + (f": {missing}." if missing else "."),
        fix="Free some space (see `qnnbridge models`), or set QNNBRIDGE_MODELS_DIR to another disk.",
        details={"reason": "disk"},
    )


def _difference(path: Path, file: RepoFile) -> str:
    """Return how the file differs from the hub's, or an empty text."""
    size = path.stat().st_size
    if size != file.size:
        return f"it has {size} bytes instead of {file.size}"
    if file.sha256:
        return "" if hash_file(path) == file.sha256.lower() else "its SHA-256 is not the hub's"
    if file.blob:
        return "" if _git_hash(path, size) == file.blob.lower() else "its hash is not the hub's"
    return ""


def _git_hash(path: Path, size: int) -> str:
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
