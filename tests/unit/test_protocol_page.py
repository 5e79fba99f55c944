"""`docs/dev/protocol.md` is normative: its tables and numbers are compared with the code."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.golden.make_golden import CONVERSATIONS
from tests.unit.wire_streams import feed, plain, wire

from qnnbridge_host.engine import sessions
from qnnbridge_host.engine.ort_engine import OrtEngine
from qnnbridge_host.request.in_flight import InFlight
from qnnbridge_host.serve import handlers, server
from qnnbridge_host.serve.numbers_service import NumbersService
from qnnbridge_host.start import introduction
from qnnbridge_host.wrap.build import WrapRequest
from qnnbridge_protocol import connection, errors, frames, limits, model_records, specs, values
from qnnbridge_protocol.connection import (
    API_VERSIONS,
    DAEMON_FEATURE,
    FEATURES,
    LEAVE_FEATURE,
    MAKE_WAY_FEATURE,
    Hello,
    Role,
    State,
)
from qnnbridge_protocol.elements import LAYOUTS, MAX_DEPTH, MAX_RANK, MAX_TENSOR_BYTES, ElementType
from qnnbridge_protocol.frames import Frame, FrameReader, Kind
from qnnbridge_protocol.limits import Limits

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "dev" / "protocol.md").read_text("utf-8")
HOST = ROOT / "host_arm64" / "qnnbridge_host"

Row = list[str]


def section(title: str) -> str:
    """Return the text under a heading, up to the next heading of the same or a higher level."""
    found = re.search(rf"^(#+) {re.escape(title)}$", PAGE, re.M)
    assert found, f"no heading {title!r}"
    rest = PAGE[found.end() :]
    end = re.search(rf"^#{{1,{len(found.group(1))}}} ", rest, re.M)
    return rest[: end.start()] if end else rest


def tables(text: str) -> list[list[Row]]:
    """Return all tables of a text, each as rows that include the header."""
    found: list[list[Row]] = []
    previous = ""
    for line in text.splitlines():
        if line.startswith("|"):
            if not previous.startswith("|"):
                found.append([])
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not all(set(cell) == {"-"} for cell in cells):
                found[-1].append(cells)
        previous = line
    return found


def rows(title: str, *head: str) -> list[Row]:
    """Return the rows of the table with this header."""
    (table,) = (table for table in tables(section(title)) if table[0][: len(head)] == list(head))
    return table[1:]


def bare(cell: str) -> str:
    """Return a name without the surrounding markup."""
    return cell.strip("[]`")


def names(title: str, *head: str) -> list[str]:
    return [bare(row[0]) for row in rows(title, *head)]


def blocks(title: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", section(title), re.M | re.S)


# --- frames ----------------------------------------------------------------------------------------------


def test_the_prefix_has_the_layout_of_the_page() -> None:
    sizes = {"4s": 4, "B": 1, "H": 2, "I": 4, "Q": 8}
    codes = re.findall(r"\d*[a-zA-Z]", frames.PREFIX.format.removeprefix("<"))
    table = rows("Frame", "offset", "size", "field")
    assert [int(row[1]) for row in table] == [sizes[code] for code in codes]
    offset = 0
    for row in table:
        assert int(row[0]) == offset
        offset += int(row[1])
    assert offset == frames.PREFIX_BYTES
    assert f"prefix of {frames.PREFIX_BYTES} bytes" in section("Frame")
    assert frames.PREFIX.format.startswith("<"), "little-endian, without gaps"


def test_the_fields_of_the_prefix_are_listed_in_the_order_of_parsing() -> None:
    fields = [row[2] for row in rows("Frame", "offset", "size", "field")]
    assert fields == [
        *("magic", "wire version", "kind", "flags", "request id", "header bytes", "buffer count", "body bytes"),
        *("checksum", "reserved"),
    ]
    prefix = frames.pack_prefix(Kind.REPLY, 3, b"\x80", 5, 6)
    assert frames.parse_prefix(prefix, Limits())[:-1] == (frames.WIRE_VERSION, Kind.REPLY, 3, 1, 5, 6)


def test_magic_wire_version_and_alignment_equal_those_of_the_code() -> None:
    rules = {row[2]: row[3] for row in rows("Frame", "offset", "size", "field")}
    assert f"`{frames.MAGIC.hex(' ').upper()}`" in rules["magic"]
    assert rules["wire version"].startswith(f"{frames.WIRE_VERSION};")
    assert f"multiple of {frames.ALIGNMENT} " in section("Frame")


def test_the_body_has_the_layout_of_the_formula_on_the_page() -> None:
    sizes = [1, 0, 64, 65]
    offsets = [0]
    for size in sizes[:-1]:
        offsets.append(frames.aligned(offsets[-1] + size))
    data = wire(Frame(Kind.REQUEST, 1, {}, tuple(b"x" * size for size in sizes)))
    prefix = frames.parse_prefix(data, Limits())
    assert prefix.body_bytes == offsets[-1] + sizes[-1]
    body = data[frames.aligned(frames.PREFIX_BYTES + prefix.header_bytes) :]
    assert len(body) == prefix.body_bytes
    assert [body[at : at + size] for at, size in zip(offsets, sizes, strict=True)] == [
        b"x" * size for size in sizes
    ]


def test_the_examples_are_real_frames() -> None:
    ping, request = ([bytes.fromhex(text)] for text in blocks("Examples", "hex"))
    assert feed(FrameReader(Limits()), ping[0]) == [CONVERSATIONS["served"]["16-client-ping"]]
    (frame,) = feed(FrameReader(Limits()), request[0])
    assert (frame.kind, frame.request_id) == (Kind.REQUEST, 3)
    assert list(frame.header) == ["op", "session", "outputs", "inputs"]
    (name, descriptor), *_ = frame.header["inputs"]
    assert (name, values.decode(descriptor, frame.buffers).tolist()) == ("x", [1.0, 2.0])
    assert frames.parse_prefix(request[0], Limits()).header_bytes == 59
    assert [plain(again) for again in feed(FrameReader(Limits()), wire(frame))] == [plain(frame)]


def test_the_kinds_equal_those_of_the_code() -> None:
    table = rows("Kinds", "number", "kind", "from")
    assert [(int(row[0]), row[1]) for row in table] == [(int(kind), kind.name) for kind in Kind]
    for _, name, speaker, *_ in table:
        said_by = {role.value for (role, _), kinds in connection.SENDS.items() if Kind[name] in kinds}
        assert said_by == ({"client", "host"} if speaker == "both" else {speaker})


# --- limits ----------------------------------------------------------------------------------------------


def test_the_negotiated_limits_equal_those_of_the_code() -> None:
    assert {bare(row[0]): int(row[1]) for row in rows("Limits", "limit", "default")} == Limits().to_wire()


def test_the_fixed_limits_equal_those_of_the_code() -> None:
    fixed = {row[0]: int(row[1]) for row in rows("Limits", "limit", "value")}
    assert fixed == {
        "header of a HELLO": limits.MAX_HELLO_BYTES,
        "text before the host's first frame": limits.MAX_PREAMBLE_BYTES,
        "containers in a header": limits.MAX_DEPTH,
        "values one in the other": MAX_DEPTH,
        "evidence of a broken stream": limits.EVIDENCE_BYTES,
    }


@pytest.mark.parametrize(
    ("title", "sentence"),
    [
        ("Streams", f"up to {limits.MAX_PREAMBLE_BYTES} bytes of other text"),
        ("Header", f"at most {limits.MAX_DEPTH} containers"),
        ("Broken streams", f"keeps up to {limits.EVIDENCE_BYTES} bytes as evidence"),
        ("Broken streams", f"exit code {server.EXIT_PROTOCOL}"),
        ("States", f"for at most {server.DRAIN_TIMEOUT_S:.0f} seconds, then sends its own GOODBYE"),
        ("States", f"ends with exit code {server.EXIT_OK}"),
        ("Cancel", f"after at most {server.CANCEL_GRACE_S} seconds"),
        ("session.create", f"(and {sessions.WATCHDOG_GRACE_S:.0f} seconds)"),
        ("Values", f"nested at most {MAX_DEPTH} deep"),
        ("Values", f"the limit of 2^{MAX_TENSOR_BYTES.bit_length() - 1} elements and bytes"),
        ("Values", f"0 to {MAX_RANK} dimensions"),
        ("HELLO", f"speaks version {API_VERSIONS[0]} to {API_VERSIONS[1]}"),
    ],
)
def test_a_number_in_a_sentence_equals_that_of_the_code(title: str, sentence: str) -> None:
    assert sentence in " ".join(section(title).split())


# --- conversations ---------------------------------------------------------------------------------------


def test_the_fields_of_hello_equal_those_of_the_code() -> None:
    assert names("HELLO", "field", "type") == list(Hello().to_wire())


def test_the_features_equal_those_of_the_code() -> None:
    assert set(names("HELLO", "feature")) == FEATURES | {DAEMON_FEATURE}
    assert set(names("HELLO", "client's feature")) == {MAKE_WAY_FEATURE, LEAVE_FEATURE}


def moves(cell: str, state: State) -> dict[Kind, State]:
    """Parse ``REQUEST, GOODBYE → closing`` into a row of the tables in the code."""
    out = {}
    for item in filter(None, cell.split(", ")):
        kind, _, after = item.partition(" → ")
        out[Kind[kind]] = State(after) if after else state
    return out


@pytest.mark.parametrize("role", list(Role))
def test_the_states_equal_those_of_the_code(role: Role) -> None:
    client, host = (table[1:] for table in tables(section("States")))
    listed = client if role is Role.CLIENT else host
    assert [State(row[0]) for row in listed] == list(State)
    for row in listed:
        state = State(row[0])
        assert moves(row[1], state) == connection.SENDS.get((role, state), {})
        assert moves(row[2], state) == connection.RECEIVES.get((role, state), {})


def test_each_request_has_the_answers_that_the_code_accepts() -> None:
    listed = {Kind[row[0]]: {Kind[kind] for kind in row[1].split(" or ")} for row in rows("Requests", "asked")}
    assert listed == connection.ANSWERS


def returned_texts(function: Any) -> set[str]:
    """Return the strings that a function returns, found in its source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found = (node for returned in ast.walk(tree) if isinstance(returned, ast.Return) for node in ast.walk(returned))
    return {node.value for node in found if isinstance(node, ast.Constant) and type(node.value) is str}


def test_a_cancel_is_answered_with_the_states_of_the_page() -> None:
    assert set(names("Cancel", "state")) == returned_texts(InFlight.cancel)


def declared(call: ast.AST) -> str | None:
    """Return the phase that a call declares, or ``None``."""
    if not isinstance(call, ast.Call) or not call.args:
        return None
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    argument, *_versions = call.args
    if name not in ("on_phase", "enter", "declare_phase") or not isinstance(argument, ast.Constant):
        return None
    return str(argument.value)


def test_the_phases_equal_those_that_the_host_declares() -> None:
    trees = (ast.parse(path.read_bytes()) for path in HOST.rglob("*.py"))
    found = {phase for tree in trees for node in ast.walk(tree) if (phase := declared(node))}
    assert set(names("Phases", "phase")) == found


def test_the_stages_of_progress_equal_those_of_the_code() -> None:
    told = re.search(r"A stage is (.*?)\. `label`", section("Events"), re.S)
    assert told
    assert re.findall(r"`(\w+)`", told[1]) == list(get_args(model_records.ProgressStage))


# --- operations ------------------------------------------------------------------------------------------

OPERATIONS: Mapping[str, Any] = handlers.HostHandlers(
    lambda _on_phase: pytest.fail("not loaded"), introduction()
).operations


def test_every_operation_has_a_section() -> None:
    assert re.findall(r"^### (.*)$", section("Operations"), re.M) == list(OPERATIONS)


# Handlers whose requests are read in another module, which is loaded with the first of them.
ELSEWHERE: Mapping[Any, Sequence[Any]] = {
    handlers.HostHandlers._verify: (NumbersService.verify, NumbersService._comparison),
    handlers.HostHandlers._samples: (NumbersService.samples,),
}


def function_nodes(function: Any) -> Iterator[ast.AST]:
    for one in ELSEWHERE.get(getattr(function, "__func__", function), (function,)):
        yield from ast.walk(ast.parse(textwrap.dedent(inspect.getsource(one))))


def fields_read(function: Any) -> tuple[set[str], set[str]]:
    """Return the header fields that a handler requires, and those that are optional."""
    needed, asked = set(), set()
    for node in function_nodes(function):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("header", "request.header"):
            needed.add(ast.literal_eval(node.slice))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("header.get", "request.header.get"):
            asked.add(ast.literal_eval(node.args[0]))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "field":
            (asked if len(node.args) > 3 else needed).add(ast.literal_eval(node.args[1]))
        elif isinstance(node, ast.Call) and ast.unparse(node) == "WrapRequest.from_plain(request.header)":
            needed |= {one.name for one in dataclasses.fields(WrapRequest)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("self._session", "_session_id"):
            needed.add("session")
    return needed, asked - needed


def keys_answered(function: Any) -> set[str]:
    """Return the keys of the maps that a function returns, found in its source."""
    returned = (node.value for node in function_nodes(function) if isinstance(node, ast.Return) and node.value)
    maps = (node.elts[0] if isinstance(node, ast.Tuple) else node for node in returned)
    keys = (key for node in maps if isinstance(node, ast.Dict) for key in node.keys)
    return {str(key.value) for key in keys if isinstance(key, ast.Constant)}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_fields_of_an_operation_equal_those_that_the_host_reads(operation: str) -> None:
    listed = next((table[1:] for table in tables(section(operation)) if table[0][0] == "field"), [])
    needed, asked = fields_read(OPERATIONS[operation])
    assert {bare(row[0]) for row in listed if not row[0].startswith("[")} == needed
    assert {bare(row[0]) for row in listed if row[0].startswith("[")} == asked


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_reply_to_an_operation_equals_that_of_the_host(operation: str) -> None:
    listed = next((table[1:] for table in tables(section(operation)) if table[0][0] == "reply"), [])
    answered = keys_answered(OPERATIONS[operation])
    if operation == "host.info":
        answered |= keys_answered(OrtEngine.describe)
    assert {bare(row[0]) for row in listed} == answered
    assert bool(answered) is ("The reply is empty." not in section(operation))


@pytest.mark.parametrize(
    ("title", "record"),
    [
        ("Session specification", specs.SessionSpec),
        ("Compile specification", specs.CompileSpec),
        ("Run options", specs.RunSpec),
        ("Session information", specs.SessionInfo),
        ("Placement", specs.Placement),
        ("Cache settings", model_records.CacheSettings),
        ("Cache reply", model_records.CacheReply),
        ("Model identity", model_records.ModelIdentity),
        ("Compile result", model_records.CompileResult),
        ("Numbers report", model_records.NumbersReport),
    ],
)
def test_the_fields_of_a_specification_equal_those_of_the_code(title: str, record: type[Any]) -> None:
    assert names(title, "field") == [field.name for field in dataclasses.fields(record)]


def test_the_fields_of_an_output_equal_those_of_the_code() -> None:
    listed = names("Numbers report", "member of an output")
    assert listed == [field.name for field in dataclasses.fields(model_records.OutputNumbers)]


@pytest.mark.parametrize(
    ("title", "field", "record"),
    [
        ("Session specification", "providers", specs.ProviderSpec),
        ("Session information", "inputs", specs.NodeInfo),
    ],
)
def test_the_fields_of_a_list_equal_those_of_the_code(title: str, field: str, record: type[Any]) -> None:
    (text,) = (row[1] for row in rows(title, "field") if bare(row[0]) == field)
    assert re.findall(r"`(\w+)`", text) == [item.name for item in dataclasses.fields(record)]


# --- values ----------------------------------------------------------------------------------------------


def test_the_grammar_of_values_equals_that_of_the_code() -> None:
    (grammar,) = blocks("Values", "")
    found = re.search(r"::\n\n(.*?)\n\nValues are nested", values.__doc__ or "", re.S)
    assert found
    assert grammar.rstrip() == textwrap.dedent(found.group(1)).rstrip()


def test_the_element_types_equal_those_of_the_code() -> None:
    table = rows("Values", "number", "element type", "bits")
    assert [(int(row[0]), row[1]) for row in table] == [(int(element), element.text) for element in ElementType]
    bits = {ElementType(int(row[0])): row[2] for row in table}
    assert bits.pop(ElementType.STRING) == "-"
    assert {element: int(text) for element, text in bits.items()} == {e: LAYOUTS[e].bits for e in bits}


# --- errors ----------------------------------------------------------------------------------------------

BUILTIN = (
    *(TimeoutError, ValueError, TypeError, RuntimeError, KeyError, IndexError, MemoryError),
    *(FileNotFoundError, OSError),
)


def test_the_fields_of_an_error_equal_those_of_the_code() -> None:
    error = errors.BridgeError("x")
    assert names("Errors", "field") == [*error.to_wire(), "retry"]
    error.retry = "safe"
    assert names("Errors", "field") == list(error.to_wire())


def test_the_error_codes_equal_those_of_the_code() -> None:
    table = [(bare(row[0]), *row[1:]) for row in rows("Errors", "code")]
    expected = [
        (code, cls.__name__, next((also.__name__ for also in BUILTIN if issubclass(cls, also)), ""), cls.retry)
        for code, cls in errors.BY_CODE.items()
    ]
    assert table == expected


@pytest.mark.parametrize(
    "code", sorted(set(re.findall(r"`((?:host|wire|call|option|model|ort|py)\.[A-Z]\w+)`", PAGE)))
)
def test_every_code_on_the_page_exists(code: str) -> None:
    assert code in errors.BY_CODE


# --- markers, links and files ----------------------------------------------------------------------------


def test_the_markers_on_stderr_equal_those_of_the_code(capfd: pytest.CaptureFixture[str]) -> None:
    (expected,) = blocks("stderr", "")
    sessions.mark("begin", 7)
    sessions.mark("end", 7)
    lines = [line for line in capfd.readouterr().err.split("\n") if line]
    assert lines == expected.splitlines()


def test_links_within_the_page_have_a_target() -> None:
    headings = {
        re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in re.findall(r"^#+ (.*)$", PAGE, re.M)
    }
    linked = set(re.findall(r"\]\(#([^)]*)\)", PAGE))
    assert linked
    assert linked <= headings


def test_files_on_the_page_exist() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", PAGE)
    assert named
    assert all((ROOT / name).exists() for name in named)
