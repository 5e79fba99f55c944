"""Descriptions of memory, shared allocators and streams of devices behave as in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime_qnn")

import onnxruntime as real

import qnnbridge.ort as ort
from qnnbridge._host import default_host
from tests.dropin.wrong_uses import MUL

pytestmark = pytest.mark.process

# Older releases lack some names and have other error texts.
newest = pytest.mark.skipif(
    tuple(map(int, real.__version__.split(".")[:2])) < (1, 32), reason="the texts are those of onnxruntime 1.32"
)

NAMES = (
    *("Cpu", "cpu", "", "Cuda", "CUDA", "CudaPinned", "DML", "HIP", "Hip", "HipPinned", "OpenVINO_CPU", "Tvm"),
    *("OpenVINO_GPU", "OpenVINO_RT", "OpenVINO_RT_NPU", "WebGPU_Buf", "WebGPU_Buffer", "WebNN_Tensor", "Cann"),
    "QnnHtpShared",
)


def facts(info: Any) -> list[Any]:
    kinds = (info.allocator_type, info.mem_type, info.device_mem_type)
    return [info.name, info.device_id, info.device_vendor_id, *(int(kind) for kind in kinds)]


def outcome(attempt: Callable[[], Any]) -> tuple[str, str]:
    try:
        return "", str(attempt())
    except Exception as error:
        builtin = next(c for c in type(error).__mro__ if c.__module__ == "builtins")
        return builtin.__name__, str(error).split("Invoked with")[0].strip()


@newest
@pytest.mark.parametrize("name", NAMES)
def test_a_memory_info_is_that_of_onnxruntime(name: str) -> None:
    def told(module: Any) -> Any:
        arena, default = module.OrtAllocatorType.ORT_ARENA_ALLOCATOR, module.OrtMemType.DEFAULT
        return facts(module.OrtMemoryInfo(name, arena, 1, default))

    assert outcome(lambda: told(ort)) == outcome(lambda: told(real))


@pytest.mark.parametrize("shared", ["DEFAULT", "HOST_ACCESSIBLE"])
def test_a_memory_info_of_a_device_is_that_of_onnxruntime(shared: str) -> None:
    def told(module: Any) -> Any:
        kind = getattr(module.OrtDeviceMemoryType, shared)
        device = module.OrtAllocatorType.ORT_DEVICE_ALLOCATOR
        return facts(
            module.OrtMemoryInfo.create_v2("mine", module.OrtMemoryInfoDeviceType.NPU, 5, 1, kind, 64, device)
        )

    assert told(ort) == told(real)


def cpu(module: Any) -> Any:
    return module.OrtMemoryInfo("Cpu", module.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, module.OrtMemType.DEFAULT)


ARENA = (0, -1, -1, -1)
REGISTERED: dict[str, Callable[[Any], Any]] = {
    "of the CPU": lambda m: m.create_and_register_allocator(cpu(m), None),
    "with an arena": lambda m: m.create_and_register_allocator(cpu(m), m.OrtArenaCfg(*ARENA)),
    "of a provider": lambda m: m.create_and_register_allocator_v2(
        "CPUExecutionProvider", cpu(m), {}, m.OrtArenaCfg(*ARENA)
    ),
    "of QNN": lambda m: m.create_and_register_allocator_v2(
        "QNNExecutionProvider", cpu(m), {}, m.OrtArenaCfg(*ARENA)
    ),
    "of another device": lambda m: m.create_and_register_allocator(
        m.OrtMemoryInfo("Cuda", m.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, m.OrtMemType.DEFAULT), None
    ),
    "of a number": lambda m: m.create_and_register_allocator(3, None),
    "with a number as arena": lambda m: m.create_and_register_allocator(cpu(m), 3),
    "with the arguments of older pages": lambda m: m.create_and_register_allocator_v2(
        "CPUExecutionProvider", cpu(m), m.OrtArenaCfg(*ARENA), {}
    ),
    "a stream by itself": lambda m: m.OrtSyncStream(),
    "a stream of the CPU": lambda m: m.get_ep_devices()[0].create_sync_stream(),
}


@newest
@pytest.mark.parametrize("name", REGISTERED)
def test_allocators_and_streams_end_as_in_onnxruntime(name: str) -> None:
    assert outcome(lambda: REGISTERED[name](ort)) == outcome(lambda: REGISTERED[name](real))


def test_sessions_share_an_allocator_in_the_next_host_too() -> None:
    ort.create_and_register_allocator(cpu(ort), None)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    x = {"X": np.ones((3, 2), np.float32)}
    session = ort.InferenceSession(MUL, options, providers=["CPUExecutionProvider"])
    expected = session.run(None, x)[0]
    host = default_host()
    process = host.supervisor.running
    assert process is not None
    process.kill("the test ends it")
    assert np.array_equal(session.run(None, x)[0], expected)
    assert host._remembered_in == host.stats.generation
    assert host.call({"op": "host.stats"}).header["objects"] == 0
    host._remembered.clear()
