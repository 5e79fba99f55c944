"""List, read and download the files of a model repository on a hub.

All errors of the hub, the network and the file system become a `BridgeError` with a fix. huggingface_hub is
imported when the first `Hub` is created.
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
from qnnbridge_protocol.settings import models_dir

_DEFAULT_ENDPOINT: Final = "https://huggingface.co"
# Number of bytes that one request for a part of a file reads.
_BLOCK_BYTES: Final = 256 * 1024
_CHUNK_BYTES: Final = 1024 * 1024
# Most bytes to download in one request: content delivery networks send at most 50 GB in a response.
_MOST_BYTES: Final = 40 * 1000**3
_PROXIES: Final = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy")
# Suffix of incomplete files and folders.
PART: Final = ".qnnbridge-part"


@dataclasses.dataclass(frozen=True, slots=True)
class RepoFile:
    """One file of a repository.

    Args:
        name: path in the repository.
        size: size in bytes.
        sha256: hash of a file that the hub stores outside git; empty if unknown.
        blob: git's hash of any other file; empty if unknown.
    """

    name: str
    size: int
    sha256: str = ""
    blob: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class HubRepository:
    """One commit of a model repository.

    Args:
        revision: as given by the user.
    """

    name: str
    revision: str | None
    commit: str
    files: Mapping[str, RepoFile]

    @property
    def label(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name


def parse_name(name: str, revision: str | None, endpoint: str) -> tuple[str, str | None]:
    """Split ``OWNER/NAME@REVISION`` or the address of a page into name and revision. Raise `OptionError`."""
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

    Args:
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
                cause="The packages of the extra [hub] are missing or incomplete.",
                fix=install_command("hub", python=sys.executable),
                details={"reason": "packages"},
            ) from None
        # Base class of network errors, in httpx or in the HTTP library of a later huggingface_hub.
        bases = self._hub.errors.HfHubHTTPError.__mro__
        self._network: Any = next(one for one in bases if one.__name__ == "HTTPError")
        if not re.match("https?://.", hub_endpoint()):
            raise PullFailed(
                f'HF_ENDPOINT is "{without_login(hub_endpoint())}", which is not the address of a hub.',
                fix="Set the variable to an address that begins with https:// or http://, or unset it.",
                details={"reason": "network"},
            )
        # Read the address now: huggingface_hub read the variable when it was imported, and it may have changed
        # since.
        self._address_of_hub = hub_endpoint()
        self.endpoint = without_login(self._address_of_hub)
        self._token = token

    def repository(self, name: str, revision: str | None) -> HubRepository:
        """List the files of a repository. Raise `OptionError` for an unknown name or revision, `PullFailed` for
        other errors.
        """
        with self._errors(name, revision):
            api = self._hub.HfApi(endpoint=self._address_of_hub, token=self._token, library_name="qnnbridge")
            info = api.model_info(name, revision=revision, files_metadata=True, timeout=30)
        # Accept only a commit id, because it becomes part of a path.
        if not re.fullmatch("[0-9a-f]{40,64}", str(info.sha)):
            raise PullFailed(
                f"The hub {self.endpoint} reports {str(info.sha)!r} for {name}, which is not a commit id.",
                fix="Correct HF_ENDPOINT, or unset it.",
                details={"reason": "refused"},
            )
        files = {}
        for one in info.siblings or ():
            lfs = getattr(one, "lfs", None)
            sha256 = str(getattr(lfs, "sha256", "") or "")
            # Omit git's hash of a file that is stored outside git: it is the hash of a pointer file.
            files[one.rfilename] = RepoFile(
                one.rfilename, int(one.size or 0), sha256, "" if sha256 else str(one.blob_id or "")
            )
        return HubRepository(name, revision, str(info.sha), files)

    def open(self, repository: HubRepository, file: str, requests: int) -> BinaryIO:
        """Open a file of the hub for reading parts of it. More than `requests` requests raise `EOFError`."""
        remote = _RemoteFile(self, repository, repository.files[file], requests)
        return io.BufferedReader(remote, _BLOCK_BYTES)

    def read(self, repository: HubRepository, file: str, at: int, length: int) -> bytes:
        """Read a part of a file of the hub. Raise `PullFailed` if this fails."""
        address = self._address(repository, file)
        headers = {**self._headers(), "Range": f"bytes={at}-{at + length - 1}"}
        with self._errors(repository.name, repository.revision, file):
            session = self._hub.utils.get_session()
            with session.stream("GET", address, headers=headers, follow_redirects=True, timeout=30) as response:
                self._hub.utils.hf_raise_for_status(response)
                # A server without support for ranges sends the file from its beginning: skip the bytes before the
                # part, and stop reading after it.
                skip, found = (at if response.status_code == 200 else 0), bytearray()
                for chunk in response.iter_bytes():
                    found += chunk[skip:]
                    skip = max(0, skip - len(chunk))
                    if len(found) >= length:
                        break
        return bytes(found[:length])

    def download(self, repository: HubRepository, file: RepoFile, folder: Path) -> None:
        """Download a file into the folder and compare its checksum. Continue an earlier attempt."""
        target = folder.joinpath(*file.name.split("/"))
        if target.exists():
            return  # an earlier attempt has renamed the file after comparing its checksum
        part = target.with_name(target.name + PART)
        with self._errors(repository.name, repository.revision, file.name), local_errors(folder):
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(part, "r+b" if part.exists() else "w+b") as out:
                if out.seek(0, os.SEEK_END) > file.size:
                    out.truncate(out.seek(0))
                while (have := out.tell()) < file.size:
                    end = min(have + _MOST_BYTES, file.size)
                    part_of = {"Range": f"bytes=0-{end - 1}"} if end < file.size else {}
                    try:
                        self._hub.file_download.http_get(
                            self._address(repository, file.name),
                            out,
                            resume_size=have,
                            headers={**self._headers(), **part_of},
                            expected_size=end,
                            displayed_filename=file.name,
                        )
                    # Releases of huggingface_hub before 2 do not resume a broken connection: resume as long as
                    # new bytes arrive.
                    except self._network:
                        if out.seek(0, os.SEEK_END) <= have:
                            raise
            problem = _difference(part, file)
            if problem:
                part.unlink()
                raise PullFailed(
                    f"{file.name} of {repository.label} arrived damaged: {problem}.",
                    cause="A proxy or the network changed the file, or the hub's copy is damaged.",
                    fix="Run the same command again: it downloads this file again and keeps the others.",
                    details={"reason": "damaged", "file": file.name},
                )
            os.replace(part, target)

    def _address(self, repository: HubRepository, file: str) -> str:
        return str(
            self._hub.hf_hub_url(repository.name, file, revision=repository.commit, endpoint=self._address_of_hub)
        )

    def _headers(self) -> dict[str, str]:
        made: dict[str, str] = self._hub.utils.build_hf_headers(token=self._token, library_name="qnnbridge")
        # A compressed transfer cannot be resumed, and its length differs from the file's.
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
                f"{name} is gated: only accounts that accepted its terms can download it.",
                fix=f"Accept the terms at {page}, then store your token on this computer: hf auth login",
                details={"reason": "gated"},
            ) from None
        except known.RevisionNotFoundError:
            raise OptionError(
                f'{name} has no revision "{revision}".', fix=f"Choose a branch, tag or commit of {page}/commits"
            ) from None
        except known.RepositoryNotFoundError:
            raise self._unknown(name) from None
        except known.HFValidationError:
            raise OptionError(
                f'"{name}" is not the name of a model repository.',
                fix="Give OWNER/NAME, as on the page of the model.",
            ) from None
        except known.HfHubHTTPError as error:
            # Mirrors send the HTTP status without huggingface.co's error code.
            if error.response.status_code == 404 and file is None:
                raise self._unknown(name) from None
            raise self._refused(name, error.response, file) from None
        except self._network as error:
            raise _unreachable(self.endpoint, error, file) from None
        except OSError as error:
            # huggingface_hub raises this OSError if a download is too short: treat it as a network error.
            if error.errno is None and "Consistency check" in str(error):
                raise _unreachable(self.endpoint, error, file) from None
            raise

    def _unknown(self, name: str) -> OptionError:
        return OptionError(
            f"The hub shows no model repository {name}.",
            fix=f"Compare the name with {self.endpoint}/{name}. For a private model store a token: hf auth login",
        )

    def _refused(self, name: str, response: Any, file: str | None) -> PullFailed:
        status = int(response.status_code)
        what = f"{file} of {name}" if file else name
        # Without the header in which a hub states the reason, a proxy may have sent the response.
        if status in (401, 403, 407) and (proxy := _proxy()) and not response.headers.get("X-Error-Message"):
            return PullFailed(
                f"The hub or the proxy refuses {what} (HTTP {status}).",
                fix=f"Correct the proxy in {proxy}, or use a token that may read the repository: hf auth login",
                details={"reason": "refused", "status": status},
            )
        if status in (401, 403):
            return PullFailed(
                f"The hub refuses {what} {'with' if self._has_token() else 'without'} a token (HTTP {status}).",
                fix="Use a token that may read the repository: hf auth login, or the variable HF_TOKEN.",
                details={"reason": "refused", "status": status},
            )
        if status == 429:
            # The header may contain a date instead of seconds.
            given = str(response.headers.get("Retry-After") or "")
            wait = f"{given[:6]} seconds" if given.isdecimal() else "some minutes"
            return PullFailed(
                f"The hub accepts no more requests for now (HTTP 429), and {what} was not downloaded.",
                fix=f"Wait {wait} and run the command again. With a token (hf auth login) the limit is higher.",
                details={"reason": "limited", "status": status},
            )
        return PullFailed(
            f"The hub answered HTTP {status} for {what}.",
            fix="Run the same command again later: it continues the download.",
            details={"reason": "network", "status": status},
        )

    def _has_token(self) -> bool:
        return bool(self._token or self._hub.get_token())


class _RemoteFile(io.RawIOBase):
    """File on the hub, read by ranges."""

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
            raise EOFError(f"examining {self._file.name} takes too many requests")
        self._left -= 1
        data = self._hub.read(self._repository, self._file.name, self._at, length)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def hub_endpoint() -> str:
    """Return the address of the hub, which may contain a name and a password."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or _DEFAULT_ENDPOINT


def without_login(address: str) -> str:
    """Return an address for messages and records, without the name and the password in it."""
    return re.sub(r"(?<=://)[^/]*@", "", address)


def is_offline() -> bool:
    """Return whether huggingface_hub's variable forbids the use of the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in ("1", "ON", "YES", "TRUE")


def offline_refused(name: str, why: str) -> PullFailed:
    return PullFailed(
        f"{name} was not pulled to this computer before, and {why}.",
        fix="Pull the model once with a network: without --offline and with HF_HUB_OFFLINE unset.",
        details={"reason": "offline"},
    )


def _unreachable(endpoint: str, error: Exception, file: str | None) -> PullFailed:
    text = str(error).strip() or type(error).__name__
    details = {"reason": "network"}
    if file is not None:
        return PullFailed(
            f"The connection broke while {file} was downloaded.",
            cause=text.splitlines()[0],
            fix="Run the same command again: it continues the download.",
            details=details,
        )
    proxy = _proxy()
    if "CERTIFICATE_VERIFY_FAILED" in text:
        fix = "If a proxy of your company inspects connections, set SSL_CERT_FILE to the file with its certificate."
    elif type(error).__name__ == "ProxyError" or proxy:
        fix = f"Correct the address of the proxy in {proxy or 'HTTPS_PROXY'}, or unset the variable."
    elif os.environ.get("HF_ENDPOINT"):
        fix = "Correct HF_ENDPOINT, or unset it; or connect to the network. Behind a proxy set HTTPS_PROXY."
    else:
        fix = "Connect to the network. Behind a proxy set HTTPS_PROXY; for a mirror set HF_ENDPOINT."
    cause = text.splitlines()[0]
    return PullFailed(f"The hub {endpoint} cannot be reached.", cause=cause, fix=fix, details=details)


def _proxy() -> str:
    """Return the name of the variable that sets a proxy, or ""."""
    return next((name for name in _PROXIES if os.environ.get(name)), "")


def _elsewhere(folder: Path) -> str:
    """Return advice on how to choose another folder."""
    if folder.absolute().is_relative_to(models_dir().absolute()):
        return "set QNNBRIDGE_MODELS_DIR"
    return "give --output DIR"


@contextlib.contextmanager
def local_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the folder's file system into `PullFailed`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
            raise no_space(folder, None) from None
        if error.errno is None:  # network errors have no errno
            raise
        if error.errno == errno.EFBIG:
            raise PullFailed(
                f"The file system of {folder}, or a limit of this user, does not allow a file of this size.",
                fix=f"Choose a folder on another disk (FAT32 limits files to 4 GiB): {_elsewhere(folder)}.",
                details={"reason": "disk"},
            ) from None
        raise PullFailed(
            f"{error.filename or folder} cannot be written: {error.strerror or error}.",
            fix=f"Choose another folder for the model: {_elsewhere(folder)}.",
            details={"reason": "rights"},
        ) from None


def no_space(folder: Path, missing: str | None) -> PullFailed:
    return PullFailed(
        f"The disk of {folder} has too little space" + (f": {missing}." if missing else "."),
        fix=f"Free some space (see `qnnbridge models`), or choose a folder on another disk: {_elsewhere(folder)}.",
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
