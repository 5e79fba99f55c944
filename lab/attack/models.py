"""Process hostile models with every tool: small files with gigantic tensors, endless loops, or graphs that are
endless when expanded."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper

from lab.attack import large_models
from lab.attack.report import Report

# Limit of the processor time of a tool and its hosts in seconds, whether the tool succeeds or fails.
ANSWER_S = 5.0
# Limit of processor time for models of 10,000 to 100,000 nodes. ONNX Runtime alone takes 2.5 s to load such a
# model, and a tool on an idle machine takes 5 s.
LARGE_S = 8.0
# Tools that skip these large models, because calibration and QNN's compiler take minutes. They do run on
# `long_chain`, because they immediately refuse models of more than 60,000 nodes.
SLOW_OF_LARGE = ("quantize", "prepare")
# Limit of a tool's elapsed time in seconds. The limit is high, because the machine may be busy.
GIVE_UP_S = 120.0
# Resident memory in bytes at which a tool is killed, to protect the machine.
GIVE_UP_BYTES = 4 * 1024**3
# Limit of a tool's memory in bytes. Python with onnxruntime and QNN's simulator alone needs 500 MB.
MEMORY_BYTES = 3 * 1024**3 // 2

# Arguments of each tool. The paths of the model and of the result replace MODEL and OUT.
TOOLS: dict[str, list[str]] = {
    "inspect": ["inspect", "MODEL"],
    "analyze": ["analyze", "MODEL", "--offline"],
    "fix": ["fix", "MODEL", "-o", "OUT"],
    "optimize": ["optimize", "MODEL", "-o", "OUT"],
    "quantize": ["quantize", "MODEL", "-o", "OUT", "--random", "1"],
    "prepare": ["prepare", "MODEL", "-o", "OUT"],
}


def _value(name: str, shape: Any = ("N",), element: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, element, shape)


def _model(
    nodes: list[Any], initializers: list[Any] = (), functions: list[Any] = (), domains: tuple[str, ...] = ()
) -> Any:  # type: ignore[assignment]
    graph = helper.make_graph(nodes, "g", [_value("x", [1, 4])], [_value("y", None)], list(initializers))
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
    model = helper.make_model(graph, opset_imports=imports, functions=list(functions))
    model.ir_version = 9
    return model


def _ints(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def gigantic_constant() -> Any:
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])]
    return _model(nodes, [_ints("s", 2**20, 2**13, 4)])


def gigantic_tile() -> Any:
    seed = numpy_helper.from_array(np.ones((1, 4), np.float32), "w")
    nodes = [helper.make_node("Tile", ["w", "r"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])]
    return _model(nodes, [seed, _ints("r", 2**31, 2)])


def gigantic_expand() -> Any:
    seed = numpy_helper.from_array(np.ones((1, 4), np.float32), "w")
    nodes = [helper.make_node("Expand", ["w", "s"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])]
    return _model(nodes, [seed, _ints("s", 2**30, 4)])


def gigantic_range() -> Any:
    scalars = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in (("a", 0), ("b", 2**40), ("d", 1))]
    nodes = [
        helper.make_node("Range", ["a", "b", "d"], ["c"]),
        helper.make_node("Cast", ["c"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["f"], ["t"]),
        helper.make_node("Add", ["x", "t"], ["y"]),
    ]
    return _model(nodes, scalars)


def gigantic_pad() -> Any:
    seed = numpy_helper.from_array(np.ones((1, 4), np.float32), "w")
    nodes = [helper.make_node("Pad", ["w", "p"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])]
    return _model(nodes, [seed, _ints("p", 2**30, 0, 0, 0)])


def growing_tiles() -> Any:
    """Return a model in which each constant is 16 times as large as the previous one."""
    seed = numpy_helper.from_array(np.ones((1, 4), np.float32), "t0")
    nodes = [helper.make_node("Tile", [f"t{n}", "r"], [f"t{n + 1}"]) for n in range(9)]
    nodes.append(helper.make_node("Add", ["x", "t9"], ["y"]))
    return _model(nodes, [seed, _ints("r", 16, 1)])


def doubling_sizes(depth: int = 60) -> Any:
    """Return a model in which each shape tensor is twice as long as the previous, to exhaust shape inference."""
    nodes = [helper.make_node("Concat", [f"s{n}", f"s{n}"], [f"s{n + 1}"], axis=0) for n in range(depth)]
    nodes += [
        helper.make_node("ReduceProd", [f"s{depth}"], ["p"], keepdims=1),
        helper.make_node("Expand", ["x", "p"], ["y"]),
    ]
    return _model(nodes, [_ints("s0", 1)])


def false_size() -> Any:
    """Return a model with an initializer whose shape does not fit its data."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2**30, 2**30], raw_data=b"\0" * 16)
    return _model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor])


def negative_size() -> Any:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-4], raw_data=b"\0" * 16)
    return _model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor])


def exponential_functions(depth: int = 40) -> Any:
    functions = []
    for level in range(depth):
        op = {"domain": "f"} if level + 1 < depth else {}
        name = f"F{level + 1}" if level + 1 < depth else "Relu"
        nodes = [helper.make_node(name, ["a"], ["b"], **op), helper.make_node(name, ["b"], ["c"], **op)]
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
        functions.append(helper.make_function("f", f"F{level}", ["a"], ["c"], nodes, imports))
    return _model([helper.make_node("F0", ["x"], ["y"], domain="f")], functions=functions, domains=("f",))


def recursive_function() -> Any:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    body = [helper.make_node("F", ["a"], ["c"], domain="f")]
    function = helper.make_function("f", "F", ["a"], ["c"], body, imports)
    return _model([helper.make_node("F", ["x"], ["y"], domain="f")], functions=[function], domains=("f",))


def deep_branches(depth: int = 25) -> Any:
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["o"])], "g", [], [_value("o", None)])
    for _ in range(depth):
        node = helper.make_node(
            "If",
            ["c"],
            ["o"],
            then_branch=graph,
            else_branch=helper.make_graph(
                [helper.make_node("Identity", ["x"], ["o"])], "e", [], [_value("o", None)]
            ),
        )
        graph = helper.make_graph([node], "g", [], [_value("o", None)])
    condition = numpy_helper.from_array(np.array(True), "c")
    node = helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph)
    return _model([node], [condition])


def endless_loop() -> Any:
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["v", "v"], ["w"])],
        "b",
        [_value("i", [], TensorProto.INT64), _value("go", [], TensorProto.BOOL), _value("v", None)],
        [_value("on", [], TensorProto.BOOL), _value("w", None)],
    )
    trip = numpy_helper.from_array(np.array(2**62, np.int64), "n")
    start = numpy_helper.from_array(np.ones(4, np.float32), "v0")
    nodes = [
        helper.make_node("Loop", ["n", "", "v0"], ["l"], body=body),
        helper.make_node("Add", ["x", "l"], ["y"]),
    ]
    return _model(nodes, [trip, start])


def circle() -> Any:
    return _model(
        [
            helper.make_node("Add", ["x", "b"], ["a"]),
            helper.make_node("Add", ["x", "a"], ["b"]),
            helper.make_node("Add", ["a", "b"], ["y"]),
        ]
    )


def long_name() -> Any:
    return _model([helper.make_node("Relu", ["x"], ["y"], name="n" * 5_000_000)])


def outside_data(where: str = "/dev/zero") -> Any:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1, 4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", where), ("length", "16")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return _model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor])


def many_outputs(count: int = 20_000) -> Any:
    names = [f"s{n}" for n in range(count)]
    return _model(
        [helper.make_node("Split", ["x"], names, axis=1), helper.make_node("Concat", names, ["y"], axis=1)]
    )


MODELS: tuple[Callable[[], Any], ...] = (
    *(
        gigantic_constant,
        gigantic_tile,
        gigantic_expand,
        gigantic_range,
        gigantic_pad,
        growing_tiles,
        doubling_sizes,
    ),
    *(
        false_size,
        negative_size,
        exponential_functions,
        recursive_function,
        deep_branches,
        endless_loop,
        circle,
    ),
    *(long_name, outside_data, many_outputs),
    *large_models.MODELS,
)


def attack(
    tools: tuple[str, ...] = tuple(TOOLS), models: tuple[str, ...] = (), answer_s: float = ANSWER_S
) -> Report:
    """Run each tool on each model. The rows of the report show processor seconds and megabytes."""
    report = Report("hostile models")
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        for make in MODELS:
            if models and make.__name__ not in models:
                continue
            path = Path(folder, f"{make.__name__}.onnx")
            onnx.save(make(), str(path))
            for tool in tools:
                large = make in large_models.MODELS
                if large and make is not large_models.long_chain and tool in SLOW_OF_LARGE:
                    continue
                words, seconds, megabytes = _ask(tool, path, folder)
                report.count("answers")
                report.rows.append(
                    f"{make.__name__:22} {tool:9} {seconds:5.1f} s {megabytes:5.0f} MB  {words[:90]}"
                )
                limit_s = max(LARGE_S, answer_s) if large else answer_s
                if seconds > limit_s or words.startswith("no answer"):
                    report.finding(f"{tool} of {make.__name__} took {seconds:.1f} s: {words[:300]}")
                report.expect(
                    megabytes * 2**20 < MEMORY_BYTES, f"{tool} of {make.__name__} took {megabytes:.0f} MB"
                )
                if "Traceback" in words or "died with" in words:
                    report.finding(f"{tool} of {make.__name__}: {words[-600:]}")
    return report


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _ask(tool: str, model: Path, folder: str) -> tuple[str, float, float]:
    """Run a tool on a model.

    Returns:
        The output, the processor time in seconds, and the peak memory in MB of the tool or its largest host.
    """
    out = Path(tempfile.mkdtemp(prefix="out-", dir=folder), "out.onnx")
    words = {"MODEL": str(model), "OUT": str(out)}
    arguments = (words.get(word, word) for word in TOOLS[tool])
    command = [sys.executable, "-X", "faulthandler", "-m", "qnnbridge_tools", *arguments]
    environment = os.environ | {"COLUMNS": "120", "QNNBRIDGE_CACHE_DIR": folder, "QNNBRIDGE_STATE_DIR": folder}
    begin = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            preexec_fn=_limit,
            start_new_session=True,
        )
        code, usage = _ended(process, begin + GIVE_UP_S)
        output.seek(0)
        said = output.read().decode(errors="replace")
    seconds, megabytes = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**10
    if code is None:
        return f"no answer: {said[-300:]}", seconds, megabytes
    if code < 0:
        return f"died with {code}: {said[-500:]}", seconds, megabytes
    if "Traceback" in said:
        return said, seconds, megabytes
    lines = [line for line in said.splitlines() if line.strip()]
    return f"[{code}] " + (lines[0] if lines else ""), seconds, megabytes


def _ended(process: subprocess.Popen[bytes], until: float) -> tuple[int | None, resource.struct_rusage]:
    """Wait for the process; return its exit code (``None`` if it was killed) and the resource usage from
    `wait4`."""
    code: int | None = None
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            break
        if time.monotonic() > until or _resident(process.pid) > GIVE_UP_BYTES:
            os.killpg(process.pid, signal.SIGKILL)
            _, _, usage = os.wait4(process.pid, 0)
            break
        time.sleep(0.05)
    process.returncode = -signal.SIGKILL if code is None else code
    return code, usage


def _resident(pid: int) -> int:
    """Return the resident bytes of a process and its descendants."""
    try:
        process = psutil.Process(pid)
        return sum(int(one.memory_info().rss) for one in [process, *process.children(recursive=True)])
    except psutil.Error:
        return 0
