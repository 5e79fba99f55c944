"""The golden frames of protocol version 1: conversations that contain every kind of frame.

Run as a program, this module writes missing files and lists those that differ. Frames of a released version are
never rewritten: a later build must still read them, and a build with that version must still write them. Therefore
all values are literal and do not use defaults that may change.

`served` is a complete conversation in order, `called_back` one with functions of the application, and `refused` one
that ends with HELLO_ERR. A file contains one frame as hexadecimal digits. The file name starts with the position in
the conversation, followed by the sender.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qnnbridge_protocol.frames import Frame, Kind, write_frame
from qnnbridge_protocol.limits import Limits
from qnnbridge_protocol.values import ElementType, Encoder, Sparse, Typed

FOLDER = Path(__file__).parent / "v1"

HELLO = {
    "api": [1, 1],
    "features": ["cancel", "phase"],
    "limits": {"max_header": 4194304, "max_buffers": 65536, "max_body": 2147483648, "max_in_flight": 64},
    "qnnbridge": "0.1.0",
    "pid": 4711,
    "machine": "x64",
    "python": "3.10.11",
    "executable": "C:\\Programme\\Überblick\\python.exe",
    "platform": "win32",
    "versions": {},
}
HELLO_OK = {
    **HELLO,
    "limits": {"max_header": 1048576, "max_buffers": 1024, "max_body": 2147483648, "max_in_flight": 32},
    "pid": 815,
    "machine": "ARM64",
    "python": "3.11.9",
    "versions": {"onnxruntime": "1.31.1", "onnxruntime_qnn": "2.7.0", "qnn_sdk": "2.50.0"},
}

PLAIN: Mapping[ElementType, np.ndarray[Any, Any]] = {
    ElementType.FLOAT: np.array([[0.0, -0.0, 1.5], [np.inf, -np.inf, 3.4e38]], "<f4"),
    ElementType.UINT8: np.array([0, 1, 255], "u1"),
    ElementType.INT8: np.array([-128, -1, 127], "i1"),
    ElementType.UINT16: np.array([0, 258, 65535], "<u2"),
    ElementType.INT16: np.array([-32768, 258, 32767], "<i2"),
    ElementType.INT32: np.array([-(2**31), 0x01020304, 2**31 - 1], "<i4"),
    ElementType.INT64: np.array([-(2**63), 0x0102030405060708, 2**63 - 1], "<i8"),
    ElementType.STRING: np.array([["", "a"], ["ü€😀", "two words"]], object),
    ElementType.BOOL: np.array([True, False, True]),
    ElementType.FLOAT16: np.array([0.5, -65504, np.inf], "<f2"),
    ElementType.DOUBLE: np.array([5e-324, -1.5, 1.7976931348623157e308], "<f8"),
    ElementType.UINT32: np.array([0, 0x01020304, 2**32 - 1], "<u4"),
    ElementType.UINT64: np.array([0, 0x0102030405060708, 2**64 - 1], "<u8"),
    ElementType.COMPLEX64: np.array([1 + 2j, -3.5j], "<c8"),
    ElementType.COMPLEX128: np.array([1 + 2j, -3.5j], "<c16"),
}
NOT_A_NUMBER = np.array([0x7FC00000, 0x7F800001, 0xFFC12345], "<u4").view("<f4")


def raw(element: ElementType, bits: int, count: int) -> Typed:
    """Return a tensor of a type that numpy lacks, with increasing bytes."""
    size = (count * bits + 7) // 8
    data = np.arange(0x11, 0x11 + size // 2 if bits == 16 else 0x11 + size, dtype="<u2" if bits == 16 else "u1")
    if count * bits % 8:
        data[-1] &= (1 << count * bits % 8) - 1
    return Typed(data, element, (count,))


RAW: Mapping[ElementType, Typed] = {
    ElementType.BFLOAT16: raw(ElementType.BFLOAT16, 16, 3),
    ElementType.FLOAT8E4M3FN: raw(ElementType.FLOAT8E4M3FN, 8, 3),
    ElementType.FLOAT8E4M3FNUZ: raw(ElementType.FLOAT8E4M3FNUZ, 8, 3),
    ElementType.FLOAT8E5M2: raw(ElementType.FLOAT8E5M2, 8, 3),
    ElementType.FLOAT8E5M2FNUZ: raw(ElementType.FLOAT8E5M2FNUZ, 8, 3),
    ElementType.UINT4: raw(ElementType.UINT4, 4, 3),
    ElementType.INT4: raw(ElementType.INT4, 4, 4),
    ElementType.FLOAT4E2M1: raw(ElementType.FLOAT4E2M1, 4, 5),
    ElementType.FLOAT8E8M0: raw(ElementType.FLOAT8E8M0, 8, 3),
    ElementType.UINT2: raw(ElementType.UINT2, 2, 5),
    ElementType.INT2: raw(ElementType.INT2, 2, 8),
    ElementType.FLOAT6E2M3: raw(ElementType.FLOAT6E2M3, 6, 4),
    ElementType.FLOAT6E3M2: raw(ElementType.FLOAT6E3M2, 6, 5),
}
INPUTS: Mapping[str, Any] = {
    **{element.text: value for element, value in (*PLAIN.items(), *RAW.items())},
    "not a number": NOT_A_NUMBER,
    "scalar": np.array(2.5, "<f4"),
    "empty": np.zeros((2, 0, 3), "<f4"),
    "no strings": np.empty((0,), object),
    "63": np.arange(63, dtype="u1"),
    "64": np.arange(64, dtype="u1"),
    "65": np.arange(65, dtype="u1"),
    "200": np.arange(200, dtype="u1").reshape(10, 20),
}
OUTPUTS: list[Any] = [
    None,
    [],
    [np.array([1, 2], "<i8"), np.zeros((0,), "<i8")],
    [[np.array(1.5, "<f8")], [], [None]],
    {"cat": 0.75, "dog": 0.25},
    {1: "one", -2: "minus two"},
    {},
    {"scores": np.array([0.5], "<f4"), "labels": np.array(["ä"], object)},
    [{0: 0.25, 1: 0.75}, {0: 1.0, 1: 0.0}],
    [{"a": 1}, {}, {"b": 2, "c": 3}],
    Sparse(np.array([1.5, 2.5], "<f4"), (3, 4), "coo", (np.array([1, 11], "<i8"),)),
    Sparse(np.array([1.5, 2.5], "<f4"), (3, 4), "coo", (np.array([[0, 1], [2, 3]], "<i8"),)),
    Sparse(np.array([7, 8], "<i8"), (2, 3), "csr", (np.array([0, 2], "<i8"), np.array([0, 1, 2], "<i8"))),
]


def _described(values: list[Any]) -> tuple[list[Any], tuple[Any, ...]]:
    encoder = Encoder()
    return [encoder.add(value) for value in values], tuple(encoder.buffers)


def _served() -> dict[str, Frame]:
    inputs, input_buffers = _described(list(INPUTS.values()))
    outputs, output_buffers = _described(OUTPUTS)
    initializers, initializer_buffers = _described([np.array([[1.0, 2.0]], "<f4")])
    return {
        "01-client-hello": Frame(Kind.HELLO, 0, HELLO),
        "02-host-hello_ok": Frame(Kind.HELLO_OK, 0, HELLO_OK),
        "03-host-phase": Frame(Kind.PHASE, 0, {"phase": "importing"}),
        "04-client-request": Frame(Kind.REQUEST, 1, {"op": "host.info"}),
        "05-host-phase": Frame(Kind.PHASE, 0, {"phase": "ready"}),
        "06-host-reply": Frame(
            Kind.REPLY, 1, {"versions": {"onnxruntime": "1.31.1"}, "providers": ["CPUExecutionProvider"]}
        ),
        "07-client-request": Frame(
            Kind.REQUEST,
            2,
            {
                "op": "session.create",
                "spec": {
                    "model_path": None,
                    "providers": [{"name": "QNNExecutionProvider", "options": {"soc_model": "60"}}],
                    "fallback": "error",
                    "options": {"log_severity_level": 2},
                    "initializers": ["W"],
                },
                "initializers": initializers,
                "budget_s": 12.5,
            },
            (*initializer_buffers, b"\x08\x08these would be the bytes of a model"),
        ),
        "08-host-phase": Frame(Kind.PHASE, 2, {"phase": "creating"}),
        "09-host-reply": Frame(
            Kind.REPLY,
            2,
            {
                "session": 1,
                "info": {
                    "inputs": [{"name": "x", "type": "tensor(float)", "shape": ["N", 3, None]}],
                    "outputs": [{"name": "y", "type": "seq(map(int64,tensor(float)))", "shape": []}],
                    "providers": ["QNNExecutionProvider"],
                    "placement": {"known": True, "qnn_nodes": 12, "cpu_nodes": 0, "partitions": 1},
                },
            },
        ),
        "10-client-request": Frame(
            Kind.REQUEST,
            3,
            {
                "op": "session.run",
                "session": 1,
                "inputs": [[name, item] for name, item in zip(INPUTS, inputs, strict=True)],
                "outputs": ["y"],
                "options": {"options": {"logid": "first"}, "config_entries": {"qnn.perf_mode": "burst"}},
            },
            input_buffers,
        ),
        "11-host-reply": Frame(Kind.REPLY, 3, {"outputs": outputs}, output_buffers),
        "12-client-request": Frame(Kind.REQUEST, 4, {"op": "session.run", "session": 1, "inputs": []}),
        "13-client-cancel": Frame(Kind.CANCEL, 5, {"target": 4}),
        "14-host-error": Frame(
            Kind.ERROR,
            4,
            {
                "error": {
                    "code": "ort.Fail",
                    "message": "Exiting due to terminate flag being set to true.",
                    "cause": None,
                    "fix": "Call again.",
                    "evidence": ["exit", "flag"],
                    "details": {"number": -(2**63), "share": 0.5, "data": b"\x00\xff", "list": [True, None]},
                }
            },
        ),
        "15-host-reply": Frame(Kind.REPLY, 5, {"state": "stopped"}),
        "16-client-ping": Frame(Kind.PING, 6, {}),
        "17-host-event": Frame(Kind.EVENT, 0, {"event": "an example"}),
        "18-host-pong": Frame(Kind.PONG, 6, {}),
        "19-client-goodbye": Frame(Kind.GOODBYE, 0, {}),
        "20-host-goodbye": Frame(Kind.GOODBYE, 0, {}),
    }


def _called_back() -> dict[str, Frame]:
    described, buffers = _described([np.array([1.0, 2.0], "<f4")])
    returned, returned_buffers = _described([np.array([7, 8, 9], "u1")])
    return {
        "01-client-hello": Frame(Kind.HELLO, 0, {**HELLO, "features": ["callback", "cancel", "phase"]}),
        "02-host-hello_ok": Frame(Kind.HELLO_OK, 0, {**HELLO_OK, "features": ["callback", "cancel", "phase"]}),
        "03-client-request": Frame(
            Kind.REQUEST,
            1,
            {
                "op": "object.call",
                "object": 1,
                "operation": "compile_to_file",
                "arguments": {"output": "C:\\m_ctx.onnx"},
                "functions": ["initializer_location"],
                "function_timeout_s": 300.0,
            },
        ),
        "04-host-call_back": Frame(
            Kind.CALL_BACK,
            1,
            {"call": 1, "function": "initializer_location", "arguments": {"name": "W"}, "values": described},
            buffers,
        ),
        "05-client-return": Frame(
            Kind.RETURN, 1, {"result": {"offset": 4096}, "values": returned, "call": 1}, returned_buffers
        ),
        "06-host-call_back": Frame(
            Kind.CALL_BACK, 1, {"call": 2, "function": "initializer_location", "arguments": {}, "values": []}
        ),
        "07-client-return": Frame(Kind.RETURN, 1, {"error": {"type": "KeyError", "text": "'W'"}, "call": 2}),
        "08-host-reply": Frame(Kind.REPLY, 1, {"object": None, "result": None, "values": []}),
        "09-client-goodbye": Frame(Kind.GOODBYE, 0, {}),
        "10-host-goodbye": Frame(Kind.GOODBYE, 0, {}),
    }


def _refused() -> dict[str, Frame]:
    return {
        "01-client-hello": Frame(Kind.HELLO, 0, {**HELLO, "api": [7, 9], "qnnbridge": "9.0.0"}),
        "02-host-hello_err": Frame(
            Kind.HELLO_ERR,
            0,
            {
                "error": {
                    "code": "host.VersionMismatch",
                    "message": "The two sides have no protocol version in common.",
                    "cause": None,
                    "fix": "Upgrade the host.",
                    "evidence": [],
                    "details": {"client": "9.0.0", "host": "0.1.0", "older": "host"},
                }
            },
        ),
    }


CONVERSATIONS: Mapping[str, Mapping[str, Frame]] = {
    "served": _served(),
    "refused": _refused(),
    "called_back": _called_back(),
}


def path_of(conversation: str, name: str) -> Path:
    return FOLDER / conversation / f"{name}.hex"


def load(path: Path) -> bytes:
    return bytes.fromhex(path.read_text("ascii"))


def main() -> int:
    different = []
    for conversation, frames in CONVERSATIONS.items():
        for name, frame in frames.items():
            path, data = path_of(conversation, name), b"".join(write_frame(frame, Limits()))
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(textwrap.fill(data.hex(" ", -4), 72) + "\n", "ascii")
                print(f"written: {path.name}")
            elif load(path) != data:
                different.append(str(path))
    print("\n".join(f"differs, delete it to rewrite it: {path}" for path in different) or "all others are the same")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
