"""A model hub on loopback with the protocol of huggingface_hub, and with faults of hubs and networks.

Large files are redirected to a second server, like a content network, which must never receive a token.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "hf_the_token_of_a_test"
_LARGE = (".onnx", ".bin", ".zip", ".data", ".onnx_data")


@dataclasses.dataclass
class Repo:
    """A repository of the hub.

    Args:
        files: contents of the revision main by name.
        gated: only requests with `TOKEN` may read the files.
        private: requests without `TOKEN` get 404, as on the hub.
        sizes: wrong sizes that the hub reports, by name of the file.
        older: files of further revisions by name.
    """

    files: dict[str, bytes]
    gated: bool = False
    private: bool = False
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    older: dict[str, dict[str, bytes]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        named = {"main": self.files, **self.older}
        self.commits = {name: commit_of(files) for name, files in named.items()}
        # Revisions by name and by commit.
        self.revisions = {**named, **{self.commits[name]: files for name, files in named.items()}}

    def commit(self, revision: str) -> str:
        return self.commits.get(revision, revision)


def commit_of(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha1(usedforsecurity=False)
    for name, data in sorted(files.items()):
        digest.update(name.encode() + b"\0" + data)
    return digest.hexdigest()


@dataclasses.dataclass
class FakeHub:
    """A running hub.

    Args:
        endpoint: address for ``HF_ENDPOINT``.
        requests: (method, path, range, token) of all requests so far.
        most: maximum number of bytes in one response of the content network; larger requests get HTTP 400, as from
            real ones.
        fault: called with method and path of each request; returns an HTTP status for the response, "drop" to close
            the connection, "cut" to send half of the body, "swap" to send other bytes of the same length, or ``None``.
    """

    endpoint: str = ""
    content: str = ""
    repos: dict[str, Repo] = dataclasses.field(default_factory=dict)
    requests: list[tuple[str, str, str, str]] = dataclasses.field(default_factory=list)
    fault: Callable[[str, str], int | str | None] = lambda _method, _path: None
    ranges: bool = True
    most: int | None = None
    retry_after: str = "7"

    def add(self, name: str, files: Mapping[str, bytes], **settings: Any) -> Repo:
        self.repos[name] = Repo(dict(files), **settings)
        return self.repos[name]

    def downloads(self, file: str) -> list[str]:
        """Return the ranges of all requests for the contents of a file."""
        return [one[2] for one in self.requests if one[0] == "GET" and one[1].endswith(urllib.parse.quote(file))]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        self.hub.requests.append((self.command, self.path, self.headers.get("Range") or "", token))
        fault = self.hub.fault(self.command, self.path)
        if isinstance(fault, int):
            self.refuse(fault, {"Retry-After": self.hub.retry_after} if fault == 429 else {})
            return
        if fault == "drop":
            self.close_connection = True
            return
        path = urllib.parse.unquote(self.path.partition("?")[0])
        if path.startswith("/content/"):
            self.send_content(path, fault)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self.send_info(found[1], found[2] or "main", token)
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.send_file(found[1], found[2], found[3], token, fault)
        else:
            self.refuse(404, {})

    def found(
        self, name: str, revision: str, token: str, *, contents: bool
    ) -> tuple[Repo, dict[str, bytes]] | None:
        """Return the repository and the files of a revision; ``None`` if a refusal has been sent."""
        repo = self.hub.repos.get(name)
        if token and token != TOKEN:
            self.refuse(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif repo is None or (repo.private and not token):
            self.refuse(404 if token else 401, {"X-Error-Code": "RepoNotFound"})
        elif contents and repo.gated and not token:
            self.refuse(401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to the model is restricted."})
        elif revision not in repo.revisions:
            self.refuse(404, {"X-Error-Code": "RevisionNotFound"})
        else:
            return repo, repo.revisions[revision]
        return None

    def send_info(self, name: str, revision: str, token: str) -> None:
        found = self.found(name, revision, token, contents=False)
        if found is None:
            return
        repo, files = found
        siblings = []
        for file, data in files.items():
            size = repo.sizes.get(file, len(data))
            one: dict[str, Any] = {"rfilename": file, "size": size, "blobId": git_hash(data)}
            if file.endswith(_LARGE):
                one["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": size, "pointerSize": 130}
                one["blobId"] = "0" * 40  # git's hash of the pointer
                one["xetHash"] = xet_hash(data)
            siblings.append(one)
        info = {
            "id": name,
            "modelId": name,
            "sha": repo.commit(revision),
            "siblings": siblings,
            "gated": repo.gated,
        }
        info |= {"private": repo.private, "tags": [], "downloads": 0, "likes": 0}
        self.send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def send_file(self, name: str, revision: str, file: str, token: str, fault: int | str | None) -> None:
        found = self.found(name, revision, token, contents=True)
        if found is None:
            return
        repo, files = found
        if file not in files:
            self.refuse(404, {"X-Error-Code": "EntryNotFound"})
        elif file.endswith(_LARGE):
            sha256 = hashlib.sha256(files[file]).hexdigest()
            place = f"{self.hub.content}/content/{name}/{revision}/{urllib.parse.quote(file)}"
            # Clients of Xet fetch the file in chunks from another service; others follow the redirect.
            tokens = f"{self.hub.endpoint}/api/models/{name}/xet-read-token/{repo.commit(revision)}"
            linked = {
                "X-Linked-Etag": f'"{sha256}"',
                "X-Linked-Size": str(repo.sizes.get(file, len(files[file]))),
                "X-Xet-Hash": xet_hash(files[file]),
                "X-Xet-Refresh-Route": tokens,
                "Link": f'<{tokens}>; rel="xet-auth"',
            }
            self.send(302, b"", {"Location": place, "X-Repo-Commit": repo.commit(revision), **linked})
        else:
            headers = {"ETag": f'"{git_hash(files[file])}"', "X-Repo-Commit": repo.commit(revision)}
            self.send_data(files[file], headers, fault)

    def send_content(self, path: str, fault: int | str | None) -> None:
        _, _, owner, name, revision, file = path.split("/", 5)
        data = self.hub.repos[f"{owner}/{name}"].revisions[revision][file]
        if self.hub.most is not None and len(data) > self.hub.most and self.asked_for(data) > self.hub.most:
            self.refuse(400, {})
            return
        self.send_data(data, {"ETag": f'"{hashlib.sha256(data).hexdigest()}"'}, fault)

    def asked_for(self, data: bytes) -> int:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        return len(range(len(data))[int(wanted[1]) : int(wanted[2]) + 1 if wanted[2] else None] if wanted else data)

    def send_data(self, data: bytes, headers: dict[str, str], fault: int | str | None) -> None:
        if fault == "swap":
            data = bytes(len(data))
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "") if self.hub.ranges else None
        if wanted is None:
            self.send(200, data, headers, cut=fault == "cut")
            return
        start = int(wanted[1])
        end = min(int(wanted[2]) + 1 if wanted[2] else len(data), len(data))
        headers = {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
        self.send(206, data[start:end], headers, cut=fault == "cut")

    def refuse(self, status: int, headers: Mapping[str, str]) -> None:
        self.send(status, b'{"error": "refused"}', {"Content-Type": "application/json", **headers})

    def send(self, status: int, body: bytes, headers: Mapping[str, str], *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = cut


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def xet_hash(data: bytes) -> str:
    """Return 64 hexadecimal digits that differ from SHA-256, like a Xet hash."""
    return hashlib.blake2s(data).hexdigest()


@contextlib.contextmanager
def serving_hub() -> Iterator[FakeHub]:
    hub = FakeHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    # Another name of the same machine is another host for HTTP: a token must not follow the redirect.
    hub.endpoint = f"http://127.0.0.1:{servers[0].server_address[1]}"
    hub.content = f"http://localhost:{servers[1].server_address[1]}"
    threads = [threading.Thread(target=one.serve_forever, args=(0.05,), daemon=True) for one in servers]
    for one in threads:
        one.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


def main() -> None:
    """Serve a repository until Ctrl+C: ``python -m tests.fakes.hub OWNER/NAME NAME=FILE ...``."""
    name, *files = sys.argv[1:]
    with serving_hub() as hub, contextlib.suppress(KeyboardInterrupt):
        hub.add(name, {given: Path(file).read_bytes() for given, _, file in (one.partition("=") for one in files)})
        print(f"Serving {name}. Ctrl+C ends it. In the other terminal:", flush=True)
        print(f"export HF_ENDPOINT={hub.endpoint}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
