"""An engine that follows a script in the model, to inject faults.

The "model" is JSON: ``{"scale": 2.0, "npu": true, "on_create": ["sleep:0.1"], "on_run": ["segv"], "once": FILE}``.
A session has one input ``x`` and one output ``y = x * scale`` (float32, any shape). Actions are performed in order,
before the result. With ``once`` they are performed only if FILE does not exist, and FILE is created first.
``unmappable`` and ``room`` are faults of the NPU's memory (`use_npu_memory`). ``on_npu_run`` applies to sessions
that are not on the CPU, and ``on_written`` to repeated calls, after the result. ``wait:FILE`` waits until FILE
exists, ``note:FILE`` appends a dot to FILE.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import mmap
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qnnbridge_host import stdio_guard
from qnnbridge_host.engine.calls import BoundCall
from qnnbridge_host.engine.ort_errors import details_of
from qnnbridge_protocol import errors
from qnnbridge_protocol.specs import NodeInfo, Placement, RunSpec, SessionInfo, SessionSpec


class BadText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("this exception cannot say what it is")


def act(action: str, stop: Any = None) -> None:
    name, _, value = action.partition(":")
    if name == "segv":
        faulthandler._sigsegv()
    elif name == "read_null":
        faulthandler._read_null()
    elif name == "machine_code":
        run_machine_code(bytes.fromhex(value))
    elif name == "illegal_instruction":
        run_illegal_instruction()
    elif name == "seh":
        raise_natively(int(value, 16))
    elif name == "abort":
        print("terminate called after throwing an instance of 'std::invalid_argument'", file=sys.stderr)
        print("  what():  stoul", file=sys.stderr, flush=True)
        os.abort()
    elif name == "signal":
        os.kill(os.getpid(), int(value))
        time.sleep(60)
    elif name == "exit":
        os._exit(int(value))
    elif name == "sleep":
        time.sleep(float(value))
    elif name == "stoppable":
        if stop is not None and stop.event.wait(float(value)):
            raise errors.Fail("[ONNXRuntimeError] : 1 : FAIL : Exiting due to terminate flag being set to true.")
    elif name == "hold_gil":
        # PyDLL keeps the GIL, so that no other Python thread of this process runs.
        ctypes.PyDLL(None).usleep(int(float(value) * 1_000_000))
    elif name == "stop_process":
        # This stops the whole process, and this thread before the call returns. A signal to the process could be
        # handled by another thread and stop this thread only later.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    elif name == "print":
        print(value, flush=True)
        libc = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
        libc.puts(b"native " + value.encode())
        libc.fflush(None)
        os.write(1, b"raw " + value.encode() + b"\n")
        os.system(f"echo child {value}")
    elif name == "stderr":
        os.write(2, b"\xff" * int(value))
    elif name == "raise":
        code, _, text = value.partition("=")
        cls = errors.BY_CODE[code]
        raise cls(text or "scripted error", details=details_of(cls, text))
    elif name == "note":
        with open(value, "a") as file:
            file.write(".")
    elif name == "exception":
        raise {
            "SystemExit": SystemExit(3),
            "KeyboardInterrupt": KeyboardInterrupt(),
            "MemoryError": MemoryError(),
            "RecursionError": RecursionError(),
            "BadText": BadText(),
        }[value]
    elif name == "wait":
        while not os.path.exists(value):
            time.sleep(0.002)
    elif name == "wire":
        # Write bytes between frames to the wire, which a real host never does.
        os.write(stdio_guard.claim()[1], bytes.fromhex(value))
    elif name == "close_stderr":
        os.close(2)
    elif name == "grow":
        _kept.append(np.ones(int(value) * 131072))
    else:
        raise AssertionError(f"unknown action {action}")


def run_illegal_instruction() -> None:
    """Execute an instruction that is invalid on every real or emulated processor. POSIX."""
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\0\0\0\0" if platform.machine() == "aarch64" else b"\x0f\x0b")  # udf #0; ud2
    ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()


def raise_natively(code: int) -> None:
    """Raise an unhandled exception with the system's function. Windows."""
    function = ctypes.cast(ctypes.WinDLL("kernel32").RaiseException, ctypes.c_void_p).value or 0  # type: ignore[attr-defined]
    if platform.machine() == "ARM64":
        run_machine_code(
            (0x52800000 | (code & 0xFFFF) << 5).to_bytes(4, "little")  # mov w0, code, the low half
            + (0x72A00000 | (code >> 16) << 5).to_bytes(4, "little")  # movk w0, the high half, lsl 16
            + bytes.fromhex("01008052 02008052 030080d2")  # mov w1, 0; mov w2, 0; mov x3, 0
            + bytes.fromhex("50000058 00021fd6")  # ldr x16, RaiseException; br x16
            + function.to_bytes(8, "little")
        )
        return
    run_machine_code(
        b"\x48\x83\xec\x28"  # sub rsp, 28h
        + b"\xb9"
        + code.to_bytes(4, "little")  # mov ecx, code
        + b"\x31\xd2\x45\x31\xc0\x45\x31\xc9"  # xor edx, edx; xor r8d, r8d; xor r9d, r9d
        + b"\x48\xb8"
        + function.to_bytes(8, "little")  # mov rax, RaiseException
        + b"\xff\xd0"  # call rax
    )


def run_machine_code(code: bytes) -> None:
    """Run machine code in a new thread, because ctypes converts exceptions in a call to an `OSError`. Windows."""
    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    kernel.VirtualAlloc.restype = kernel.CreateThread.restype = ctypes.c_void_p
    memory = ctypes.c_void_p(kernel.VirtualAlloc(None, 4096, 0x3000, 0x40))
    ctypes.memmove(memory, code, len(code))
    kernel.FlushInstructionCache(ctypes.c_void_p(kernel.GetCurrentProcess()), memory, len(code))
    thread = kernel.CreateThread(None, 0, memory, None, 0, None)
    kernel.WaitForSingleObject(ctypes.c_void_p(thread), 60_000)


_kept: list[Any] = []


class TerminateFlag:
    """Replacement of ``onnxruntime.RunOptions``: assigning `terminate` sets an event."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "terminate" and value:
            self.event.set()


class FakeSession:
    def __init__(self, script: Mapping[str, Any], spec: SessionSpec) -> None:
        self.script = script
        on_npu = bool(script.get("npu", True)) and not any(
            p.name == "CPUExecutionProvider" for p in spec.providers[:1]
        )
        node = NodeInfo("x", "tensor(float)", ("n",))
        self.info = SessionInfo(
            inputs=(node,),
            outputs=(NodeInfo("y", "tensor(float)", ("n",)),),
            providers=("QNNExecutionProvider",) if on_npu else ("CPUExecutionProvider",),
            placement=Placement(
                qnn_nodes=int(on_npu), cpu_nodes=int(not on_npu), partitions=int(on_npu), backend="fake"
            ),
        )

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], run: RunSpec | None, stop: Any = None
    ) -> list[Any]:
        terminate = TerminateFlag()
        if run is not None and run.options.get("terminate"):
            terminate.terminate = True
        if stop is not None:
            stop.attach(terminate)
        perform(self.script, "on_run", terminate)
        if self.info.placement.qnn_nodes:
            perform(self.script, "on_npu_run", terminate)
        return [feeds["x"] * np.float32(self.script.get("scale", 2.0))]

    def run_bound(self, call: BoundCall, stop: Any) -> list[Any] | None:
        rest = call.take(self.run(call.output_names, call.feeds, None, stop))
        perform(self.script, "on_written", stop)
        return rest

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        perform(self.script, "on_dynamic")

    def end_profiling(self) -> str:
        return "profile.json"

    def close(self) -> None:
        _on_npu.discard(str(self.script))
        for action in self.script.get("on_close", ()):
            act(action)


# Scripts of the sessions that use memory of the NPU.
_on_npu: set[str] = set()


def use_npu_memory(script: Mapping[str, Any], spec: SessionSpec) -> None:
    """Simulate the NPU's memory.

    ``unmappable``: text of ONNX Runtime's error, which is raised if the weights are mapped. ``room``: number of
    sessions with this key that fit into the memory.
    """
    options = next((p.options for p in spec.providers if p.name == "QNNExecutionProvider"), {})
    unmapped = options.get("disable_file_mapped_weights") == "1"
    text = script.get("unmappable")
    if script.get("note_tries"):
        act(f"note:{script['note_tries']}")
    if text and not unmapped:
        raise errors.Fail(text, details=details_of(errors.Fail, text))
    room = script.get("room")
    if room is not None:
        if len(_on_npu) >= room:
            full = "[ONNXRuntimeError] : 1 : FAIL : contextCreateFromBinary failed. Error: no memory, Code: 1002"
            raise errors.Fail(full, details=details_of(errors.Fail, full))
        _on_npu.add(str(dict(script)))


class FakeEngine:
    create_holds_gil = True
    qnn_source: Mapping[str, str] = {}

    def versions(self) -> dict[str, str]:
        return {"onnxruntime": "1.32.0+fake", "onnxruntime_qnn": "2.7.0+fake", "qnn_sdk": "2.51.0+fake"}

    def qnn_library(self) -> str | None:
        return None

    def describe(self) -> dict[str, Any]:
        return {
            "providers": ["QNNExecutionProvider", "CPUExecutionProvider"],
            "devices": [],
            "simulator": True,
            "qnn_source": dict(self.qnn_source),
        }

    def create_session(
        self,
        spec: SessionSpec,
        model: Any,
        initializers: Mapping[str, Any],
        on_phase: Callable[[str], None],
        _stop: object = None,
    ) -> FakeSession:
        if spec.model_path is not None:
            with open(spec.model_path, "rb") as file:
                model = file.read()
        script = script_of(bytes(model))
        on_phase("creating")
        perform(script, "on_create")
        use_npu_memory(script, spec)
        return FakeSession(script, spec)


def script_of(model: bytes) -> dict[str, Any]:
    """Return the script in a model: the model itself, or an entry of an ONNX model's metadata."""
    if model.lstrip().startswith(b"{"):
        return dict(json.loads(model))
    import onnx

    (text,) = (entry.value for entry in onnx.load_from_string(model).metadata_props if entry.key == "script")
    return dict(json.loads(text))


def perform(script: Mapping[str, Any], when: str, stop: Any = None) -> None:
    once = script.get("once")
    if once and script.get(when):
        try:
            os.close(os.open(once, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return
    for action in script.get(when, ()):
        act(action, stop)
