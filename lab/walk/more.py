"""Walks over other parts with state: buckets, the cache of compiled models, the server, text generation.

Each walk is a seeded loop that compares results with a stateless reference. They raise `Wrong`.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import qnnbridge
from lab.walk.steps import CPU, Wrong
from qnnbridge_host.cache.files import VERSION_FOLDER
from qnnbridge_protocol.settings import cache_dir
from qnnbridge_protocol.values import equal_bits

FLOAT = TensorProto.FLOAT


def _model(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], **constants: Any) -> bytes:
    infos = [
        [helper.make_tensor_value_info(n, FLOAT, shape) for n, shape in one.items()] for one in (inputs, outputs)
    ]
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "walk", *infos, held)
    opsets = [helper.make_opsetid("", 17)]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return data


# --- buckets ---------------------------------------------------------------------------------------------

# A model whose results do not depend on zero padding: the unpadded part of `y` and `z`, and `total`, are unchanged.
_ROWS = _model(
    [
        helper.make_node("Neg", ["x"], ["y"]),
        helper.make_node("Add", ["x", "x"], ["z"]),
        helper.make_node("ReduceSum", ["x", "axes"], ["total"], keepdims=0),
    ],
    {"x": ["batch", "seq"]},
    {"y": ["batch", "seq"], "z": ["batch", "seq"], "total": ["batch"]},
    axes=np.array([1], np.int64),
)


def buckets(steps: int, seed: int) -> None:
    """Call with random sizes and output names, some in several threads; compare the results with numpy."""
    dice = random.Random(seed)
    with (
        qnnbridge.Host(shared_memory=True) as host,
        qnnbridge.InferenceSession(
            _ROWS, providers=[CPU], host=host, buckets={"seq": [2, 4, 8, 16], "batch": [1, 3]}, pad=0
        ) as session,
    ):
        kept: list[tuple[Any, Any]] = []

        def call(dice: random.Random) -> None:
            rows, columns = dice.randint(1, 7), dice.randint(1, 17)
            x = np.array([dice.randint(-9, 9) for _ in range(rows * columns)], np.float32).reshape(rows, columns)
            names = dice.choice([None, ["y"], ["total"], ["z", "y"], ["total", "z", "y"], []])
            right = {"y": -x, "z": x + x, "total": x.sum(1)}
            expected = [right[name] for name in names or ["y", "z", "total"]]
            given = dice.choice([x, np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2]])
            try:
                results = session.run(names, {"x": given}, borrow=dice.random() < 0.2)
            except qnnbridge.errors.InvalidArgument:
                if columns <= 16:  # the largest bucket has 16 columns and must accept this call
                    raise
                return
            if not equal_bits([np.asarray(result) for result in results], expected):
                raise Wrong(f"buckets: {names} of {x.shape}: {results!r:.300}, expected {expected!r:.300}")
            kept.append((results, expected))
            if len(kept) > 20:
                old, then = kept.pop(0)
                if not equal_bits([np.asarray(result) for result in old], then):
                    raise Wrong("buckets: a kept result has changed")

        for _ in range(steps // 2):
            call(dice)
        _in_threads(3, lambda number: [call(random.Random(f"{seed} {number} {n}")) for n in range(steps // 6)])


# --- the cache of compiled models ------------------------------------------------------------------------


def _adding(number: float, name: str) -> bytes:
    add = helper.make_node("Add", ["x", "k"], ["y"], name=name)
    return _model([add], {"x": [1, 4]}, {"y": [1, 4]}, k=np.full((1, 4), number, np.float32))


def cache(steps: int, seed: int, folder: Path) -> None:
    """Change models and the cache at random between sessions, and check each session's results.

    Models and external weights are edited, replaced and restored, with and without their dates; entries are
    damaged, removed and swapped; hosts are killed.
    """
    from tests.conformance.real_models import QNN, SOC_MODEL

    dice = random.Random(seed)
    # The last model has its weight in an external file.
    outside = folder / "mödel mit Gewicht.onnx"
    paths = [folder / "a.onnx", folder / "b.onnx", outside]
    onnx.save(
        onnx.load_from_string(_adding(0, "n")),
        outside,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    content: dict[Path, int] = {}

    def write(of: Path) -> None:
        content[of] = dice.choice([1, 2, 3, 5])
        path, data = of, _adding(content[of], dice.choice(["n", "m"]))
        if of == outside:
            path, data = folder / "weights.bin", np.full(4, content[of], np.float32).tobytes()
        dates = path.stat() if path.exists() else None
        if dice.random() < 0.5:
            path.write_bytes(data)
        else:
            other = folder / "new"
            other.write_bytes(data)
            os.replace(other, path)
        if dates is not None and dice.random() < 0.5:
            os.utime(path, ns=(dates.st_atime_ns, dates.st_mtime_ns))

    def harm() -> None:
        files = sorted((cache_dir() / VERSION_FOLDER / "entries").glob("*/*"))
        if not files:
            return
        file, other = dice.choice(files), dice.choice(files)
        status, way = file.stat(), dice.choice(["flip", "remove", "exchange"])
        if way == "remove":
            file.unlink()
        elif way == "exchange" and other.parent != file.parent:
            shutil.rmtree(file.parent)
            shutil.copytree(other.parent, file.parent)
        elif status.st_size:
            damaged = bytearray(file.read_bytes())
            damaged[dice.randrange(len(damaged))] ^= 1
            file.write_bytes(damaged)
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    for path in paths:
        write(path)
    x = np.array([[0.5, 1, 2, 3]], np.float32)
    with qnnbridge.Host() as host:
        for _ in range(steps):
            path = dice.choice(paths)
            if dice.random() < 0.5:
                write(path)
            if dice.random() < 0.2:
                harm()
            if dice.random() < 0.1:
                host.restart()
            process = host.supervisor.running
            if process is not None and dice.random() < 0.1:
                process.kill("the walk ends it")
            options: dict[str, Any] = {"soc_model": SOC_MODEL}
            if dice.random() < 0.3:
                options["htp_graph_finalization_optimization_mode"] = dice.choice(["1", "2"])
            given: Any = path if path == outside or dice.random() < 0.8 else path.read_bytes()
            with qnnbridge.InferenceSession(
                given, providers=[(QNN, options)], host=host, verify=False, cache=True
            ) as session:
                for _ in range(dice.choice([1, 3])):
                    (y,) = session.run(None, {"x": x})
                    if not np.allclose(y, x + content[path], atol=0.05):
                        raise Wrong(f"cache ({session.cache.state}): {y}, expected {x + content[path]}")


# --- the server ------------------------------------------------------------------------------------------


def serving(steps: int, seed: int, folder: Path) -> None:
    """Request various outputs of several models, in JSON and binary, with model loads and faults in between."""
    import tritonclient.http as triton
    from tests.serve.serving import PRIVATE
    from tests.serve.serving import serving as server_of

    models = {"rows": _ROWS, "one": _adding(3, "n")}
    for name, data in models.items():
        (folder / f"{name}.onnx").write_bytes(data)
    given = [part for name in models for part in ("--model", f"{name}={folder / name}.onnx")]
    with server_of(*PRIVATE, *given) as server:

        def client(number: int) -> None:
            dice = random.Random(f"{seed} {number}")
            binary = triton.InferenceServerClient(server.address)
            for _ in range(steps // 4):
                name = dice.choice(list(models))
                shape = (dice.choice([1, 2]), dice.choice([3, 4])) if name == "rows" else (1, 4)
                x = np.array([dice.randint(-9, 9) for _ in range(shape[0] * shape[1])], np.float32).reshape(shape)
                right = {"y": -x, "z": x + x, "total": x.sum(1)} if name == "rows" else {"y": x + np.float32(3)}
                wanted = dice.choice([None, *([one] for one in right), list(right)[::-1]])
                if dice.random() < 0.1:
                    status = server.infer(name, outputs=[{"name": "unknown"}], *[_as_json(x)]).status  # noqa: B026
                    if status != 400:
                        raise Wrong(f"serving: a request for an unknown output got the status {status}, not 400")
                if dice.random() < 0.6:
                    fields = {} if wanted is None else {"outputs": [{"name": one} for one in wanted]}
                    answer = server.infer(name, _as_json(x), **fields)
                    if answer.status != 200:
                        raise Wrong(f"serving: {answer.status} {answer.body!r:.300}")
                    got = {
                        one["name"]: np.array(one["data"], np.float32).reshape(one["shape"])
                        for one in answer.document["outputs"]
                    }
                else:
                    tensor = triton.InferInput("x", list(x.shape), "FP32")
                    tensor.set_data_from_numpy(x)
                    asked = None if wanted is None else [triton.InferRequestedOutput(one) for one in wanted]
                    reply = binary.infer(name, [tensor], outputs=asked)
                    got = {one["name"]: reply.as_numpy(one["name"]) for one in reply.get_response()["outputs"]}
                expected = {one: right[one] for one in (wanted or right)}
                if list(got) != list(expected) or not equal_bits(list(got.values()), list(expected.values())):
                    raise Wrong(f"serving: {name} {wanted}: {got!r:.300}, expected {expected!r:.300}")
            binary.close()

        _in_threads(4, client)


def _as_json(x: Any) -> dict[str, Any]:
    return {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}


# --- text generation -------------------------------------------------------------------------------------


def generation(steps: int, seed: int, folder: Path, layout: str = "dynamic") -> None:
    """Alternate between generators of one model: split prompts, further turns, rewinding, crashes of the host.

    The reference is a loop of plain sessions with the whole history, since onnxruntime-genai itself returns wrong
    tokens in a second turn.
    """
    from tests.genai.plain_loop import PlainLoop
    from tests.genai.tiny_decoders import write_model

    from qnnbridge import genai

    write_model(folder / "model", layout, qnn=False)
    truth = PlainLoop(folder / "model")
    dice = random.Random(seed)
    with qnnbridge.Host() as host:
        model = genai.Model(folder / "model", host=host)
        running: list[tuple[Any, list[int]]] = []
        for step in range(steps):
            if not running or (len(running) < 3 and dice.random() < 0.1):
                running.append((genai.Generator(model, genai.GeneratorParams(model)), []))
            one, history = dice.choice(running)
            way = dice.random()
            if way < 0.2 or len(history) < 2:
                tokens = [4 + dice.randrange(280) for _ in range(dice.randint(2, 5))]
                if len(history) + len(tokens) < truth.context - 2:
                    one.append_tokens(np.array(tokens, np.int32))
                    history += tokens
            elif way < 0.3:
                to = dice.randrange(1, len(history))
                one.rewind_to(to)
                del history[to:]
                last = 4 + dice.randrange(280)
                one.append_tokens(np.array([last], np.int32))
                history.append(last)
            elif way < 0.33 or one.is_done():
                running.remove((one, history))
                continue
            else:
                one.generate_next_token()
                history += truth.generate(history, 1)
            if step % 50 == 49:
                os.kill(host.info.pid, signal.SIGKILL)
            found = [int(token) for token in one.get_sequence(0)]
            if found != history:
                raise Wrong(f"generation: {found}, expected {history}")


def _in_threads(count: int, work: Callable[[int], Any]) -> None:
    raised: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
