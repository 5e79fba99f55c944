"""The reason of a failure is found in the host's stderr. All logs are real, see `data/stderr/README.md`."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest
from tests.fakes.fair_clock import FairClock

from qnnbridge._diagnosis.log_rules import MODEL_RULES, SETUP_RULES
from qnnbridge._diagnosis.ort_log import enrich, enrich_from_stderr, explain_lines, unsupported_nodes
from qnnbridge._launch.stderr import decode_stderr, parse_line, shorten
from qnnbridge_protocol.errors import (
    BridgeError,
    Busy,
    EPFail,
    Fail,
    InvalidGraph,
    PlacementRefused,
    RemoteRuntimeError,
)

DATA = Path(__file__).with_name("data") / "stderr"
GENERIC = (
    "[ONNXRuntimeError] : 1 : FAIL : This session contains graph nodes that are assigned to the default CPU EP, "
    "but fallback to CPU EP has been explicitly disabled by the user."
)


def log(name: str) -> list[str]:
    suffix = "" if name.endswith(".bin") else ".txt"
    return decode_stderr((DATA / f"{name}{suffix}").read_bytes()).splitlines()


# --- decoding ---


def test_a_windows_log_of_utf16_and_narrow_text_is_decoded() -> None:
    text = decode_stderr((DATA / "windows_unknown_soc_model.bin").read_bytes())
    assert "\x00" not in text
    assert "\x1b" not in text
    assert "\r" not in text
    lines = text.splitlines()
    assert lines[0] == "Failed to create DXGI factory."
    assert lines[1] == "@qnnbridge begin 7"
    assert "QNN SetupBackend failed Failed to create device. Error: QNN_DEVICE_ERROR_INVALID_CONFIG" in lines[4]
    assert lines[-1] == "@qnnbridge end 7"


@pytest.mark.parametrize("cut", [0, 1, 41, 45, 46, 1000, 1001])
def test_a_log_cut_at_any_byte_is_decoded_to_the_same_lines(cut: int) -> None:
    data = (DATA / "windows_unknown_soc_model.bin").read_bytes()
    whole, piece = decode_stderr(data).splitlines(), decode_stderr(data[cut:]).splitlines()
    assert piece[-2:] == whole[-2:]


def test_characters_of_all_languages_survive_in_both_encodings() -> None:
    wide = "2026 Grüße 模型/路径/网络模型文件夹/模型.onnx Ωmega 🚀\n"
    narrow = "narrow ü 模型\n"
    data = narrow.encode() + wide.encode("utf-16-le") + narrow.encode() + wide.encode("utf-16-le") * 2
    assert decode_stderr(data) == narrow + wide + narrow + wide * 2


def test_a_crash_in_the_middle_of_a_wide_line_does_not_garble_the_following_text() -> None:
    data = "[E:onnxruntime:, x.cc] going to".encode("utf-16-le") + b"Fatal Python error: Aborted\n"
    assert decode_stderr(data) == "[E:onnxruntime:, x.cc] going toFatal Python error: Aborted\n"


def test_bytes_that_are_not_text_are_kept_as_replacement_characters() -> None:
    assert decode_stderr(b"a\xff\xfeb\n") == "a\ufffd\ufffdb\n"
    assert decode_stderr(b"") == ""


def test_colours_and_titles_are_removed() -> None:
    assert decode_stderr(b"\x1b[0;93mwarm\x1b[m \x1b]0;title\x07cold\x1b[1;31m!\x1b[0m") == "warm cold!"


def test_megabytes_of_log_are_decoded_and_parsed_quickly() -> None:
    lines = (DATA / "refused_nodes_severity0.txt").read_text(encoding="utf-8") * 300
    clock = FairClock()
    text = decode_stderr(lines.encode("utf-16-le"))
    findings = explain_lines(text.splitlines())
    took_s = clock.seconds
    assert text == decode_stderr(lines.encode())
    assert findings
    assert took_s < 5, f"{len(lines)} characters took {took_s:.1f} s"


def test_the_prefix_of_onnxruntime_is_removed_from_a_line() -> None:
    linux = (
        "\x1b[1;31m2026-11-21 09:59:36.470044130 [E:onnxruntime:, ep.cc:2290 GetCapabilityImpl] QNN failed\x1b[m"
    )
    windows = (
        "2026-11-21 10:04:06.2709670 [E:onnxruntime:Default, inference_session.cc:3181 "
        "onnxruntime::InferenceSession::Initialize::<lambda_2>::Run] This session"
    )
    assert (parse_line(linux).severity, parse_line(linux).place) == ("E", "GetCapabilityImpl")
    assert parse_line(linux).text == "QNN failed"
    assert (parse_line(windows).place, parse_line(windows).text) == ("Run", "This session")
    assert parse_line("plain text").severity == ""


def test_a_long_line_is_shortened_in_the_middle_and_keeps_its_end() -> None:
    short = shorten("begin " + "x" * 5000 + " the reason")
    assert len(short) == 400
    assert short.startswith("begin xxx")
    assert short.endswith("the reason")


# --- rules ---


@pytest.mark.parametrize(
    ("name", "rule", "words"),
    [
        ("backend_missing", "backend.file-missing", "/nonexistent/libQnnHtp.so does not exist"),
        ("libcxx_missing", "backend.library-of-wheel", "libc++-71bc274c.so.1.0, which is missing"),
        ("backend_of_other_version", "backend.other-version", "/opt/qnn-2.6.0/libQnnHtp.so is from another"),
        ("backend_not_mapped", "backend.not-mapped", "address space"),
        ("backend_not_started", "backend.not-started", "no NPU, or no memory [QNN_BACKEND_ERROR_CANNOT_INITIALIZE"),
        ("unknown_soc_model", "backend.device-config", "QNN_DEVICE_ERROR_INVALID_CONFIG (14001)"),
        ("unknown_device_id", "backend.device-id", "A QNN device with the number 7 does not exist"),
        ("bad_context_priority", "backend.priority", "qnn_context_priority is 'huge'"),
        ("windows_unknown_soc_model.bin", "backend.device-config", "QNN_DEVICE_ERROR_INVALID_CONFIG (14001)"),
        ("windows_bad_context_priority.bin", "backend.priority", "qnn_context_priority is 'huge'"),
        ("windows_backend_missing.bin", "backend.not-loaded", "load library failed"),
        ("device_id_not_a_number", "option.unknown-exception", "option that must be a number"),
        ("fp16_without_soc_model", "option.fp16-needs-chip", "needs soc_model"),
        ("finalize_1002", "finalize.memory", "cannot run on this target"),
        ("finalize_1002_verbose", "finalize.operator", "the operator Transpose"),
        ("bad_vtcm", "graph.create", "QNN_GRAPH_ERROR_INVALID_NAME (6003)"),
        ("extended_udma", "graph.tensor", "Transpose_token_29"),
        ("bin_missing", "context.no-bin", "not in the same folder"),
        ("bin_cut_off", "context.damaged", "truncated"),
        ("bin_for_other_chip", "context.refused", "QNN_CONTEXT_ERROR_CREATE_FROM_BINARY (5005)"),
        ("name_with_dots", "context.dots", "'..'"),
        ("context_on_cpu", "context.no-provider", "compiled for QNNExecutionProvider"),
        ("compiled_twice", "context.compiled-twice", "already compiled"),
        ("output_exists", "context.exists", "does not overwrite it"),
        ("disk_full", "disk.full", "disk is full"),
        ("disk_full_embedded", "disk.full", "disk is full"),
        ("output_folder_missing", "disk.no-folder", "does not exist"),
        ("no_device", "install.no-device", "No QNN device"),
        ("refused_nodes_severity2", "graph.unsupported", "name: det, type: Det"),
        ("refused_rank_severity2", "graph.validation", "QNN_OP_PACKAGE_ERROR_VALIDATION_FAILURE (3110)"),
        ("dynamic_severity0", "graph.dynamic", "fixed dimensions"),
        ("dynamic_severity2", "graph.on-cpu", "logs no reason"),
        ("index_out_of_range", "run.index", "the value 100, but the indexed dimension has only 5 elements"),
    ],
)
def test_a_real_log_gives_its_cause(name: str, rule: str, words: str) -> None:
    best = explain_lines(log(name))[0]
    assert best.rule == rule
    assert words in best.cause
    assert best.fix
    assert best.evidence


# Lines that only a real NPU prints; the texts are from the libraries of the wheels.
NPU_LINES = [
    (" <E> Stub lib id mismatch: expected (v2.51.0.1), detected (v2.48.40.2)", "backend.mixed", "v2.48.40.2"),
    (
        " <W> Skel lib id mismatch: devKey={deviceId=0 coreId=0 pdId=0} expected (v2.51.0.1), detected (v2.40.0.9)",
        "backend.mixed",
        "the Skel library has version v2.40.0.9",
    ),
    (" <E> Failed to retrieve skel build id: err: 1008", "backend.mixed", "different versions"),
    (" <E> DspTransport.openSession qnn_open failed, 0x80000406, prio 100", "backend.skel", "0x80000406"),
    (" <E> Failed to load skel, error: 4000", "backend.skel", "not signed"),
    (" <E> Failed in loading stub: (null)", "backend.stub", "stub"),
    (" <E> Unable to get the handle to libcdsprpc.dll", "backend.fastrpc", "NPU driver"),
    (
        "[W:onnxruntime:, qnn_ep.cc:1 WarnIfHnrdPathActive] QNN EP fell back to HTP user-driver (HNRD) path; "
        "QnnHtpPrepare/Stub/Skel libs missing from backend lib dir.",
        "backend.user-driver",
        "missing in the backend's folder",
    ),
    (
        "libatomic.so.1: cannot open shared object file: No such file or directory",
        "backend.libatomic",
        "libQnnSystem",
    ),
    (
        "NPU crashed. SSR detected during QNN graph execute. Attempting SSR recovery.",
        "reset",
        "restarted by the driver",
    ),
    ("NPU crashed again after SSR recovery.", "reset.again", "twice"),
    (
        "15 : DEVICE_RESET : NPU crashed. SSR detected. Recovery not supported (no context binary on disk",
        "reset.not-recoverable",
        "cannot load the model again",
    ),
    (
        "QNN graph execute error. Error: QNN_COMMON_ERROR_SYSTEM_COMMUNICATION_FATAL: x, Code: 1011",
        "reset.fatal",
        "permanently lost access to the NPU",
    ),
    ("WARNING: Compatible cache not found.", "context.other-chip", "another chip"),
    ("Dynamic shape is not supported yet, for input: tokens", "graph.dynamic", "input tokens"),
    (
        "QNN EP requires ORT >= 1.24 (API 24). Host ORT is 1.23.2 (API 23).",
        "install.ort-too-old",
        "needs onnxruntime 1.24 or newer; the host has 1.23.2",
    ),
    (
        "SanityCheckOrtEp OrtEp has invalid ort_version_supported=0 (expected at least 22).",
        "install.ort-too-new",
        "old",
    ),
    ("SystemError : 30", "disk.read-only", "cannot be written"),
    ("QNN SetupBackend failed Something new", "backend.refused", "Something new"),
]


@pytest.mark.parametrize(
    ("line", "rule", "words"), NPU_LINES, ids=[f"{row[1]}-{i}" for i, row in enumerate(NPU_LINES)]
)
def test_a_line_of_a_real_npu_gives_its_cause(line: str, rule: str, words: str) -> None:
    if line.startswith(" <"):  # QNN's own lines arrive as verbose lines of ONNX Runtime
        line = f"2026-11-21 10:01:11.5 [V:onnxruntime:Default, qnn_backend_manager.cc:519 QnnLogging] {line}"
    (finding,) = explain_lines([line.replace(" <W> ", " <E> ")])
    assert finding.rule == rule
    assert words in finding.cause


def test_all_rules_can_be_filled_in() -> None:
    known = {"qnn", "meaning", "advice"}
    for rule in (*SETUP_RULES, *MODEL_RULES):
        groups = set(re.compile(rule.pattern).groupindex)
        wanted = {
            name for text in (rule.cause, rule.fix) for _, name, _, _ in string.Formatter().parse(text) if name
        }
        assert wanted <= (groups | known if "qnn" in groups else groups), rule.name


def test_success_messages_are_not_mistaken_for_a_fault() -> None:
    noise = [
        "2026-11-21 09:59:43.3 [V:onnxruntime:, qnn_backend_manager.cc:2145 SetupBackend] LoadBackend succeed.",
        "2026-11-21 09:59:43.3 [V:onnxruntime:, x.cc:1 SetupBackend] QNN SetupBackend failed in an earlier try",
        "2026-11-21 09:59:43.3 [V:onnxruntime:Default, y.cc:519 QnnLogging]  <E> unexpected option 66",
        "2026-11-21 09:59:43.3 [W:onnxruntime:, z.cc:933 QnnEp] File mapped weights feature is only available on",
    ]
    assert explain_lines(noise) == []


def test_lines_with_the_same_meaning_are_one_finding() -> None:
    findings = explain_lines(log("backend_missing"))
    assert [finding.rule for finding in findings] == ["backend.file-missing", "graph.on-cpu"]
    assert len(findings[0].evidence) == 1  # ONNX Runtime repeats QNN's line inside a longer one


def test_evidence_is_the_line_without_time_and_colours() -> None:
    (evidence,) = explain_lines(log("unknown_device_id"))[0].evidence
    assert evidence == "QNN SetupBackend failed Could not find device with ID = 7"


# --- refused nodes ---


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("refused_nodes_severity0", ["Det (det): Operators of type `Det` are not supported by QNN EP."]),
        ("refused_nodes_severity2", ["Det (det)"]),
        ("refused_unnamed_severity0", ["Trilu: Operators of type `Trilu` are not supported by QNN EP."]),
        ("dynamic_severity0", ["Relu (n): Cannot get shape"]),
        ("dynamic_severity2", []),
    ],
)
def test_refused_nodes_are_listed_once_each(name: str, nodes: list[str]) -> None:
    assert [str(node) for node in unsupported_nodes(log(name))] == nodes


def test_of_a_quantized_group_the_operator_is_named_with_the_reason_of_its_validation() -> None:
    (node,) = unsupported_nodes(log("refused_group_severity0"))
    assert (node.name, node.op_type) == ("conv1_token_1", "Conv")
    assert "QNN_OP_PACKAGE_ERROR_VALIDATION_FAILURE (3110)" in node.reason


@pytest.mark.parametrize("name", ["refused_rank_severity0", "refused_rank_severity2"])
def test_a_failed_validation_is_a_reason_without_a_report_too(name: str) -> None:
    (node,) = unsupported_nodes(log(name))
    assert (node.name, node.op_type) == ("n", "Relu")
    assert "3110" in node.reason


def test_a_truncated_report_does_no_harm() -> None:
    lines = log("refused_nodes_severity0")
    for end in range(len(lines)):
        assert len(unsupported_nodes(lines[:end])) <= 1


# --- errors ---


def test_the_generic_error_gets_the_real_cause() -> None:
    error = enrich(Fail(GENERIC), log("unknown_soc_model"))
    assert "QNN could not create the device" in str(error.cause)
    assert "soc_model" in str(error.fix)
    assert error.evidence[0].startswith("QNN SetupBackend failed")
    assert str(error).count("\n") >= 3


def test_a_refused_placement_reports_that_qnn_did_not_start_and_not_its_consequences() -> None:
    guess = "QNN took none of these nodes: Relu. Either it does not support them, or its backend did not start."
    error = enrich(PlacementRefused("No node can run on the NPU.", cause=guess, fix="guess"), log("libcxx_missing"))
    assert "libc++" in str(error.cause)
    assert "Reinstall onnxruntime-qnn" in str(error.fix)
    assert "libc++" in error.evidence[0]


def test_a_refused_placement_keeps_its_cause_and_gets_the_reasons_of_the_nodes() -> None:
    cause = "QNN does not support these nodes as they are: Det (det)."
    error = enrich(
        PlacementRefused("1 of 2 nodes would run on the CPU.", cause=cause), log("refused_nodes_severity0")
    )
    assert error.cause == cause
    assert error.evidence == ("Det (det): Operators of type `Det` are not supported by QNN EP.",)
    assert error.details["unsupported_nodes"] == [
        ["det", "Det", "Operators of type `Det` are not supported by QNN EP."]
    ]


def test_existing_parts_of_an_error_are_not_overwritten() -> None:
    error = EPFail("failed", cause="I know why", fix="and what to do", evidence=["this"])
    enrich(error, log("finalize_1002_verbose"))
    assert (error.cause, error.fix, error.evidence) == ("I know why", "and what to do", ("this",))


def test_the_error_message_is_explained_if_the_log_has_nothing() -> None:
    message = (
        "[ONNXRuntimeError] : 11 : EP_FAIL : Failed to finalize QNN graph. Error: QNN_COMMON_ERROR_MEM_ALLOC: x"
    )
    error = enrich(EPFail(message), [])
    assert "cannot run on this target" in str(error.cause)
    assert error.evidence == ()


def test_nodes_that_are_on_the_cpu_deliberately_do_not_explain_another_error() -> None:
    lines = [*log("bin_for_other_chip"), *log("refused_nodes_severity0")]
    error = enrich(
        InvalidGraph("contextCreateFromBinary failed. Error: QNN_CONTEXT_ERROR_CREATE_FROM_BINARY"), lines
    )
    assert "unsupported_nodes" not in error.details
    assert "context binary" in str(error.cause)


def test_a_provider_that_cannot_be_made_is_explained() -> None:
    error = enrich(RemoteRuntimeError("Error creating execution provider"), log("fp16_without_soc_model"))
    assert error.fix == "Set soc_model, too (60 for X Elite)."


def test_errors_unrelated_to_the_log_are_not_changed() -> None:
    error: BridgeError = Busy("too many calls")
    assert enrich(error, log("unknown_soc_model")).cause is None


class _Collector:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int, float]] = []

    def section(self, request_id: int, timeout_s: float) -> bytes:
        self.asked.append((request_id, timeout_s))
        return self.data


def test_an_error_is_explained_from_the_log_lines_of_its_last_request() -> None:
    collector = _Collector((DATA / "windows_unknown_soc_model.bin").read_bytes())
    error = enrich_from_stderr(Fail(GENERIC), collector, [6, 7], 0.5)
    assert collector.asked == [(7, 0.5)]
    assert "QNN_DEVICE_ERROR_INVALID_CONFIG" in str(error.cause)


def test_a_request_that_was_never_sent_has_no_lines() -> None:
    collector = _Collector(b"never read")
    error = enrich_from_stderr(Fail("x"), collector, [], 0.5)
    assert (collector.asked, error.cause) == ([], None)
