"""Measure a decoder loop with a KV cache of 32 MiB, in ms per token, for each way of calling that the API offers.

``python -m lab.bench.loops [--steps 60] [--mib 32]``. The ways take turns, each in a separate process, on the CPU
provider with one thread. The same code measures onnxruntime in process and the bridge, whose classes have the same
API.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HEADS, DEPTH, WIDTH, LAYERS = 8, 128, 256, 4
ROUNDS = 3
Step = Callable[[int], Any]


def build(path: Path, length: int) -> None:
    """Write a decoder whose attention (GroupQueryAttention) may update keys and values in place."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(1)
    nodes, constants = [], []

    def constant(name: str, array: Any) -> str:
        constants.append(numpy_helper.from_array(np.ascontiguousarray(array, np.float32), name))
        return name

    def weight(name: str, *shape: int) -> str:
        return constant(name, random.standard_normal(shape) / np.sqrt(shape[0]))

    angles = np.arange(length)[:, None] / 10000 ** (np.arange(DEPTH // 2) / (DEPTH // 2))
    rotary = [constant("cos", np.cos(angles)), constant("sin", np.sin(angles))]
    hidden = "x"
    for i in range(LAYERS):
        nodes += [
            helper.make_node("MatMul", [hidden, weight(f"w{part}{i}", WIDTH, HEADS * DEPTH)], [f"{part}{i}"])
            for part in "qkv"
        ]
        nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [f"q{i}", f"k{i}", f"v{i}", f"past_k{i}", f"past_v{i}", "seqk", "total", *rotary],
                [f"a{i}", f"present_k{i}", f"present_v{i}"],
                domain="com.microsoft",
                num_heads=HEADS,
                kv_num_heads=HEADS,
                do_rotary=1,
            )
        )
        nodes.append(helper.make_node("MatMul", [f"a{i}", weight(f"wo{i}", HEADS * DEPTH, WIDTH)], [f"o{i}"]))
        nodes.append(helper.make_node("Add", [hidden, f"o{i}"], [f"h{i}"]))
        hidden = f"h{i}"
    nodes.append(helper.make_node("MatMul", [hidden, weight("head", WIDTH, 512)], ["logits"]))
    shape = [1, HEADS, length, DEPTH]

    def cache(kind: str) -> list[Any]:
        names = [f"{kind}_{part}{i}" for i in range(LAYERS) for part in "kv"]
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]

    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, WIDTH]),
        helper.make_tensor_value_info("seqk", TensorProto.INT32, [1, 1]),
        helper.make_tensor_value_info("total", TensorProto.INT32, [1]),
    ]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 1, 512])]
    graph = helper.make_graph(nodes, "decoder", inputs + cache("past"), outputs + cache("present"), constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


class Loop:
    """The decoder loop, with a method for each kind of call. `session`: a session of ONNX Runtime or qnnbridge.
    `values`: the class OrtValue of the same library."""

    def __init__(self, session: Any, values: Any) -> None:
        self.session, self.values = session, values
        self.past = [node.name for node in session.get_inputs() if node.name.startswith("past")]
        self.present = [name.replace("past", "present") for name in self.past]
        self.names = ["logits", *self.present]
        self.shape = session.get_inputs()[3].shape
        self.x = np.random.default_rng(0).standard_normal((1, 1, WIDTH)).astype(np.float32)

    def _arrays(self) -> list[Any]:
        return [np.zeros(self.shape, np.float32) for _ in self.past]

    def _ort_values(self) -> list[Any]:
        """Return values in memory that the bridge or ONNX Runtime allocates."""
        values = [self.values.ortvalue_from_shape_and_type(self.shape, np.float32) for _ in self.past]
        for value, array in zip(values, self._arrays(), strict=True):
            value.update_inplace(array)
        return values

    def _feed(self, t: int) -> dict[str, Any]:
        return {"x": self.x, "seqk": np.array([[t]], np.int32), "total": np.array([t + 1], np.int32)}

    def plain(self) -> Step:
        """Use `run` with arrays."""
        arrays = self._arrays()

        def step(t: int) -> Any:
            logits, *arrays[:] = self.session.run(
                self.names, {**self._feed(t), **dict(zip(self.past, arrays, strict=True))}
            )
            return logits

        return step

    def out(self) -> Step:
        """Use `run(out=)` with two sets of arrays in shared memory; through the bridge only."""
        one, other = ([self.session.empty_output(name) for name in self.present] for _ in "ab")
        for array in one:
            array[:] = 0
        logits = self.session.empty_output("logits")

        def step(t: int) -> Any:
            nonlocal one, other
            feed = {**self._feed(t), **dict(zip(self.past, one, strict=True))}
            self.session.run(self.names, feed, out=[logits, *other])
            one, other = other, one
            return logits

        return step

    def _bound(self, source: list[Any], target: list[Any] | None, t: int) -> list[Any]:
        io = self.session.io_binding()
        for name, array in self._feed(t).items():
            io.bind_cpu_input(name, array)
        io.bind_output("logits")
        for name, value in zip(self.past, source, strict=True):
            io.bind_ortvalue_input(name, value)
        for index, name in enumerate(self.present):
            if target is None:
                io.bind_output(name)
            else:
                io.bind_ortvalue_output(name, target[index])
        self.session.run_with_iobinding(io)
        return list(io.get_outputs())

    def bound_new(self) -> Step:
        """Use `IOBinding` with newly allocated outputs, which become the next inputs."""
        values = self._ort_values()

        def step(t: int) -> Any:
            logits, *values[:] = self._bound(values, None, t)
            return logits.numpy()

        return step

    def bound_two(self) -> Step:
        """Use `IOBinding` with two alternating sets of values."""
        one, other = self._ort_values(), self._ort_values()

        def step(t: int) -> Any:
            nonlocal one, other
            logits = self._bound(one, other, t)[0].numpy()
            one, other = other, one
            return logits

        return step

    def bound_one(self) -> Step:
        """Use `IOBinding` with the same values as inputs and outputs."""
        values = self._ort_values()
        return lambda t: self._bound(values, values, t)[0].numpy()

    def bound_own(self) -> Step:
        """Do the same as `bound_one` with values in the application's memory."""
        values = [self.values.ortvalue_from_numpy(array) for array in self._arrays()]
        return lambda t: self._bound(values, values, t)[0].numpy()


WAYS = ("plain", "out", "bound_new", "bound_two", "bound_one", "bound_own")


def measure(kind: str, way: str, model: str, steps: int) -> dict[str, float]:
    """Run the loop in this process; return the median time of a step in ms and a checksum of the last result."""
    if kind == "in process":
        import onnxruntime as module

        options = module.SessionOptions()
        keywords: dict[str, Any] = {}
    else:
        import qnnbridge as module

        options = module.SessionOptions()
        keywords = {"host": module.Host(python=sys.executable), "cache": False}
    options.intra_op_num_threads = 1
    session = module.InferenceSession(model, options, providers=["CPUExecutionProvider"], **keywords)
    step = getattr(Loop(session, module.OrtValue), way)()
    taken, result = [], np.zeros(1)
    for t in range(steps + 5):
        begin = time.perf_counter()
        result = step(t)
        taken.append(time.perf_counter() - begin)
    return {"ms": statistics.median(taken[5:]) * 1e3, "check": float(np.abs(result).sum())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--mib", type=int, default=32)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        kind, way, model = given.child
        print(json.dumps(measure(kind, way, model, given.steps)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "decoder.onnx"
        build(model, given.mib * 2**20 // (2 * LAYERS * HEADS * DEPTH * 4))
        found: dict[tuple[str, str], list[dict[str, float]]] = {}
        for _ in range(ROUNDS):
            for way in WAYS:
                for kind in ("in process", "bridge"):
                    if (kind, way) == ("in process", "out"):
                        continue
                    command = [sys.executable, "-m", "lab.bench.loops", "--steps", str(given.steps), "--child"]
                    told = subprocess.run(
                        [*command, kind, way, str(model)], capture_output=True, text=True, check=True, timeout=600
                    )
                    found.setdefault((kind, way), []).append(json.loads(told.stdout.splitlines()[-1]))
    checks = {round(one["check"], 2) for many in found.values() for one in many}
    print(
        f"{'way':12} {'in process':>11} {'bridge':>9} {'ratio':>6}   ms a token, {given.mib} MiB, median of {ROUNDS}"
    )
    for way in WAYS:
        own, ours = (
            statistics.median(one["ms"] for one in found[kind, way]) if (kind, way) in found else None
            for kind in ("in process", "bridge")
        )
        ratio = f"{ours / own:6.2f}" if own and ours else f"{'-':>6}"
        print(f"{way:12} {'-' if own is None else f'{own:.2f}':>11} {ours:9.2f} {ratio}")
    print("results agree" if len(checks) == 1 else f"RESULTS DIFFER: {sorted(checks)}")
    return 0 if len(checks) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
