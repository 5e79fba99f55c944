"""Access to the page, its headers, and the description of the server's paths in `/openapi.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import serve_models as models
from serving import PRIVATE, Server, serving

import qnnbridge_serve.openapi
from qnnbridge_protocol import __version__
from qnnbridge_serve.app import api_paths
from qnnbridge_serve.openapi import OPENAPI_PATH, openapi_document
from qnnbridge_serve.page import PAGE_FILES

pytestmark = pytest.mark.process

TOKEN = "0123456789abcdef0123456789abcdef"
CHANGE = "/v2/repository/models/same/unload"


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write_identity(tmp_path_factory.mktemp("page") / "same.onnx", models.ELEMENTS["FP32"])


@pytest.fixture(scope="module")
def guarded(private_temporary_folder: Path, same: Path) -> Iterator[Server]:
    """A server with a token."""
    token = same.with_name("token")
    token.write_text(TOKEN)
    token.chmod(0o600)
    with serving(*PRIVATE, "--model", f"same={same}", "--token-file", token) as running:
        yield running
        assert running.end() == 0, running.errors()


def own(server: Server, name: str = "") -> dict[str, str]:
    """Return the headers of a request from the server's page. name: host name instead of the address."""
    host = name + ":" + server.address.rpartition(":")[2] if name else server.address
    return {"Host": host, "Origin": f"http://{host}"}


# --- the files ---


@pytest.mark.parametrize("path", PAGE_FILES)
def test_each_file_of_the_page_is_served_with_a_strict_content_security_policy(server: Server, path: str) -> None:
    answer = server.ask("GET", path)
    assert answer.status == 200
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert (
        policy["frame-ancestors"]
        == policy["base-uri"]
        == policy["form-action"]
        == policy["trusted-types"]
        == "'none'"
    )
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    kinds = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert answer.headers["content-type"].startswith(kinds[PAGE_FILES[path].rpartition(".")[2]])


def test_the_page_uses_no_external_resources_and_no_inline_code(server: Server) -> None:
    for path in PAGE_FILES:
        text = server.ask("GET", path).body.decode()
        found = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert found == set(), path
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, path
    html = server.ask("GET", "/").body.decode()
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon[a-z]+=", html) == []
    for link in re.findall(r'(?:src|href)="(/[^"]*)"', html):
        assert link in PAGE_FILES
    for path in PAGE_FILES:
        for module in re.findall(r'from "\./([^"]+)"', server.ask("GET", path).body.decode()):
            assert f"/page/{module}" in PAGE_FILES


def test_without_the_page_its_files_are_missing_and_its_origin_is_refused(same: Path) -> None:
    with serving(*PRIVATE, "--model", f"same={same}", "--no-page") as server:
        assert {server.ask("GET", path).status for path in PAGE_FILES} == {404}
        assert server.ask("POST", CHANGE, b"", own(server)).status == 403
        assert server.ask("GET", "/status").status == 200
        assert server.ask("GET", OPENAPI_PATH).status == 200


# --- access ---


@pytest.mark.parametrize("name", ["", "localhost", "127.0.0.1", "[::1]"])
def test_the_page_of_the_server_itself_may_use_the_server(server: Server, name: str) -> None:
    answer = server.ask("POST", "/v2/repository/index", b"{}", own(server, name))
    assert answer.status == 200
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        # A name that resolves to this machine: for the browser its page has the same origin.
        {"Host": "rebound.example:8000", "Origin": "http://rebound.example:8000"},
        {"Host": "127.0.0.1.rebound.example:8000", "Origin": "http://127.0.0.1.rebound.example:8000"},
        {"Host": "192.168.1.7:8000", "Origin": "http://192.168.1.7:8000"},
        {"Host": "0.0.0.0:8000", "Origin": "http://0.0.0.0:8000"},
        # A network may resolve a name under .localhost.
        {"Host": "page.localhost:8000", "Origin": "http://page.localhost:8000"},
        # Origins of another server on this machine, of another scheme, in another format.
        {"Host": "localhost:8000", "Origin": "http://localhost:3000"},
        {"Host": "localhost:8000", "Origin": "http://localhost"},
        {"Host": "localhost:8000", "Origin": "https://localhost:8000"},
        {"Host": "localhost:8000", "Origin": "http://127.0.0.1:8000"},
        {"Host": "localhost:8000", "Origin": "null"},
        {"Host": "localhost:8000", "Origin": ""},
        {"Host": "localhost:8000", "Origin": "http://localhost:8000, http://rebound.example"},
        {"Host": "localhost:8000@rebound.example", "Origin": "http://localhost:8000@rebound.example"},
    ],
)
def test_every_other_page_is_refused(server: Server, headers: dict[str, str]) -> None:
    for method, path in (("POST", "/v2/repository/models/pnet/unload"), ("GET", "/status"), ("GET", "/")):
        answer = server.ask(method, path, b"" if method == "POST" else None, headers)
        assert answer.status == 403
        assert "access-control-allow-origin" not in answer.headers
    assert server.ask("GET", "/v2/models/pnet/ready").status == 200


@pytest.mark.parametrize("host", ["rebound.example:8000", "page.localhost:8000", "page.localhost"])
def test_a_foreign_host_name_that_resolves_to_this_machine_reads_nothing(server: Server, host: str) -> None:
    """A browser sends no Origin for reading requests."""
    for path in ("/", "/status", OPENAPI_PATH, "/v2", "/metrics"):
        assert server.ask("GET", path, None, {"Host": host}).status == 403


def test_without_the_token_only_the_files_of_the_page_are_served(guarded: Server) -> None:
    for path in PAGE_FILES:
        assert guarded.ask("GET", path).status == 200
    for headers in (own(guarded), {**own(guarded), "Authorization": "Bearer " + "x" * 32}):
        for path in ("/status", OPENAPI_PATH, "/metrics", "/v2", "/page", "/page/", "/page/../status", "//"):
            assert guarded.ask("GET", path, None, headers).status == 401
        assert guarded.ask("POST", CHANGE, b"", headers).status == 401
    assert guarded.ask("GET", "/v2/models/same/ready", None, {"Authorization": f"Bearer {TOKEN}"}).status == 200


def test_with_the_token_the_page_may_use_the_server_under_any_of_its_names(guarded: Server) -> None:
    token = {"Authorization": f"Bearer {TOKEN}"}
    for name in ("", "npu-box.example"):
        assert guarded.ask("POST", "/v2/repository/index", b"{}", own(guarded, name) | token).status == 200
    foreign = {**own(guarded), "Origin": "http://elsewhere.example"}
    assert guarded.ask("POST", CHANGE, b"", foreign | token).status == 403


# --- status ---


def test_the_status_has_placement_comparison_and_calls(server: Server) -> None:
    def model(name: str) -> dict[str, Any]:
        (found,) = (one for one in server.ask("GET", "/status").document["models"] if one["name"] == name)
        return dict(found)

    before = model("scalar")
    given = {"name": "x", "datatype": "FP32", "shape": [], "data": [1.5]}
    for _ in range(3):
        assert server.infer("scalar", given).status == 200
    assert server.infer("scalar", {**given, "datatype": "FP64"}).status == 400
    after = model("scalar")
    assert (after["kind"], after["state"], after["version"]) == ("tensor model", "READY", "1")
    assert (after["calls"] - before["calls"], after["errors"] - before["errors"]) == (4, 1)
    assert 0 < after["latency_ms"]["p50"] <= after["latency_ms"]["p90"] <= after["latency_ms"]["p99"]
    (part,) = model("pnet")["parts"]
    assert part["placement"]["known"]
    assert part["placement"]["qnn_nodes"] == 0
    assert part["placement"]["cpu_nodes"] > 0
    assert part["numbers"]["state"] in ("off", "unknown", "pending", "agrees")
    whole = server.ask("GET", "/status").document
    assert whole["qnnbridge"] == __version__
    assert whole["daemon"] is None
    assert whole["host"]["running"]
    assert whole["server_bytes"] > 1_000_000


# --- /openapi.json ---


def document_of(server: Server) -> dict[str, Any]:
    return dict(server.ask("GET", OPENAPI_PATH).document)


def test_the_document_describes_each_path_of_the_server_and_no_other(server: Server) -> None:
    document = document_of(server)
    assert document["openapi"].startswith("3.1.")
    assert document["info"]["version"] == __version__

    class Anything:
        def __getattr__(self, name: str) -> Any:
            return Anything()

    real: Any = Anything()
    served = {(path.replace(":path}", "}"), method.lower()) for path, _, method in api_paths(real)}
    described = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert described == served | {(OPENAPI_PATH, "get")}
    names = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(set(names)) == len(names)
    with pytest.raises(KeyError):
        openapi_document([("/v3/new", "GET")])


def test_every_described_operation_exists(server: Server) -> None:
    file = Path(qnnbridge_serve.openapi.__file__).with_name("assets") / "openapi.json"
    described = document_of(server)["paths"]
    for row in json.loads(file.read_text("utf-8"))["operations"]:
        method, _, path = row.partition(" ")
        assert method.lower() in described[path]


def test_every_reference_in_the_document_can_be_resolved(server: Server) -> None:
    document = document_of(server)
    used = set()

    def walk(part: Any) -> None:
        if isinstance(part, dict):
            if "$ref" in part:
                used.add(part["$ref"])
                place: Any = document
                for key in part["$ref"].removeprefix("#/").split("/"):
                    place = place[key]
            for one in part.values():
                walk(one)
        elif isinstance(part, list):
            for one in part:
                walk(one)

    walk(document)
    unused = {
        f"#/components/{kind}/{name}" for kind, all_ in document["components"].items() for name in all_
    } - used
    assert unused == {"#/components/securitySchemes/token"}


def check(document: dict[str, Any], schema: dict[str, Any], value: Any, where: str) -> None:
    """Assert that the value matches a schema, restricted to the keywords of this document; an unknown field is an
    error.
    """
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        assert schema["anyOf"][1] == {"type": "null"}
        if value is not None:
            check(document, schema["anyOf"][0], value, where)
        return
    kinds: dict[str, tuple[type, ...]] = {
        "object": (dict,),
        "array": (list,),
        "string": (str,),
        "integer": (int,),
        "number": (int, float),
        "boolean": (bool,),
    }
    if "type" in schema:
        assert isinstance(value, kinds[schema["type"]]), f"{where} is {value!r}"
    if "enum" in schema:
        assert value in schema["enum"], where
    if isinstance(value, dict) and "properties" in schema:
        assert set(schema.get("required", ())) <= value.keys() <= schema["properties"].keys(), where
        for name, one in value.items():
            check(document, schema["properties"][name], one, f"{where}.{name}")
    if isinstance(value, dict) and "additionalProperties" in schema:
        for name, one in value.items():
            check(document, schema["additionalProperties"], one, f"{where}.{name}")
    if isinstance(value, list):
        for number, one in enumerate(value):
            check(document, schema["items"], one, f"{where}[{number}]")


def test_answers_of_the_server_match_the_schemas_of_the_document(server: Server) -> None:
    document = document_of(server)
    x = {"name": "x", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]}
    for method, path, names, sent in (
        ("GET", "/v2", {}, None),
        ("GET", "/v2/models/{name}", {"name": "pnet"}, None),
        ("GET", "/v2/models/{name}/config", {"name": "pnet"}, None),
        ("GET", "/v2/models/{name}/stats", {"name": "pnet"}, None),
        ("GET", "/v2/models/stats", {}, None),
        ("POST", "/v2/models/{name}/infer", {"name": "same-INT32"}, {"id": "a", "inputs": [x]}),
        ("POST", "/v2/repository/index", {}, {"ready": True}),
        ("GET", "/v1/models", {}, None),
        ("GET", "/status", {}, None),
    ):
        operation = document["paths"][path][method.lower()]
        answer = server.ask(method, path.format(**names), sent)
        assert answer.status == 200
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        check(document, schema, answer.document, path)
        if sent is not None:
            check(document, operation["requestBody"]["content"]["application/json"]["schema"], sent, path)
    for path, form in (("/v2/models/none", "Error"), ("/v1/models/none", "OpenAIError")):
        answer = server.ask("GET", path)
        assert answer.status == 404
        check(document, {"$ref": f"#/components/schemas/{form}"}, answer.document, path)
