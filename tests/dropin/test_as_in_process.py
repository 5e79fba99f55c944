"""Programs that use internal interfaces of onnxruntime get the same results as with onnxruntime in their own
process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")

from tests.dropin.running import TIMEOUT_S

pytestmark = pytest.mark.process

# Output of each program for one attempt: the value, or class and text of the error.
_TOLD = """
import os, sys
if sys.argv[1:]: import qnnbridge.dropin
import numpy as np, onnx, onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as C

def tell(what, attempt):
    try:
        print(what, repr(attempt()))
    except Exception as error:
        text = str(error).strip().splitlines()[0]
        print(what, type(error).__name__, text)

def model(nodes, inputs, outputs, initializers=(), **props):
    make = lambda pairs: [helper.make_tensor_value_info(n, t, s) for n, t, s in pairs]
    graph = helper.make_graph(nodes, "g", make(inputs), make(outputs), list(initializers))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(made, props)
    return made
"""

INNER = """
data = model([helper.make_node("Mul", ["x", "x"], ["y"])], [("x", 1, [2, 3])], [("y", 1, [2, 3])]).SerializeToString()
session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
x = np.arange(6, dtype=np.float32).reshape(2, 3)
native = session._sess
tell("run", lambda: native.run(["y"], {"x": x}, None)[0].tolist())
tell("unknown arguments", lambda: ort.InferenceSession(data, provider=["none"], device=3).run(None, {"x": x})[0].tolist())
tell("metas", lambda: [(m.name, m.type, m.shape) for m in (*native.inputs_meta, *native.outputs_meta)])
import re, threading
profiled = ort.SessionOptions()
profiled.enable_profiling = True
for prefix in ("onnxruntime_profile_", os.path.join("..", os.path.basename(os.getcwd()), "p"), os.path.abspath("p")):
    profiled.profile_file_prefix = prefix
    profile = ort.InferenceSession(data, profiled, providers=["CPUExecutionProvider"])
    tell("profile", lambda: re.sub("[0-9]+", "N", os.path.relpath(file, os.getcwd()) if os.path.isabs(file := profile.end_profiling()) else file))
    tell("no profile", lambda: profile.end_profiling())
threads, answers, answered = ort.SessionOptions(), [], threading.Event()
threads.intra_op_num_threads = 2
ort.InferenceSession(data, threads, providers=["CPUExecutionProvider"]).run_async(["z"], {"x": x}, lambda *given: (answers.extend(given), answered.set()), 7)
tell("async", lambda: (answered.wait(30), answers))
nothing = session.io_binding()
nothing.bind_cpu_input("x", x)
nothing.bind_output("z")
tell("unknown output", lambda: session.run_with_iobinding(nothing))
tell("same metas", lambda: [m.name for m in session._inputs_meta] == [m.name for m in native.inputs_meta])
tell("providers", lambda: (native.get_providers(), native.get_provider_options(), session._providers))
tell("facts", lambda: (native.model_meta.graph_name, native.session_options.logid, session._model_path, session._model_bytes == data))
tell("fallback", lambda: (session._fallback_providers, session._enable_fallback))
device = C.OrtDevice(C.OrtDevice.cpu(), C.OrtDevice.default_memory(), 0)
tell("device", lambda: (device.device_type(), device.device_id(), device.vendor_id(), device.mem_type()))
tell("no such device", lambda: C.OrtDevice("cpu"))
tell("wrapped device", lambda: ort.OrtDevice(device).device_type())
tell("no device", lambda: ort.OrtDevice(3))
value = C.OrtValue.ortvalue_from_numpy(x, device)
tell("value", lambda: (value.shape(), value.data_type(), value.device_name(), value.is_tensor(), value.element_type()))
tell("no constructor", lambda: C.OrtValue())
tell("wrapped value", lambda: (ort.OrtValue(value).device_name(), ort.OrtValue(value).numpy().tolist()))
tell("no value", lambda: ort.OrtValue(3))
wrapped = ort.OrtValue.ortvalue_from_numpy(x)
tell("inner value", lambda: (type(wrapped._ortvalue) is C.OrtValue, isinstance(wrapped._get_c_value(), C.OrtValue)))
tell("inner memory", lambda: wrapped._ortvalue.data_ptr() == x.ctypes.data)
tell("strings", lambda: C.OrtValue.ortvalue_from_numpy(np.array(["a", "b"]), device).shape())
tell("shape", lambda: C.OrtValue.ortvalue_from_shape_and_type([2, 2], np.int64, device).shape())
tell("onnx type", lambda: C.OrtValue.ortvalue_from_shape_and_onnx_type([2], 1, device).data_type())
results = native.run_with_ort_values({"x": value}, ["y"], None)
tell("vector", lambda: (type(results) is C.OrtValueVector, len(results), results[0].numpy().tolist(), results.element_type_at(0)))
tell("vector index", lambda: results[7])
tell("vector loop", lambda: [type(one) is C.OrtValue for one in results])
tell("dlpacks", lambda: [np.from_dlpack(results[0]).tolist(), len(results.to_dlpacks(None)), str(results.dlpack_at(0))[:9]])
feeds, fetches = C.OrtValueVector(), C.OrtValueVector()
feeds.push_back(value)
tell("push", lambda: feeds.push_back(3))
feeds.push_back(np.zeros(2, np.float32).__dlpack__())
tell("pushed", lambda: (len(feeds), feeds[1].shape()))
feeds = C.OrtValueVector()
feeds.push_back(value)
native.run_with_ortvaluevector(ort.RunOptions(), ["x"], feeds, ["y"], fetches, [device])
tell("fetched", lambda: [one.numpy().tolist() for one in fetches])
batch = C.OrtValueVector()
batch.reserve(2)
batch.push_back_batch([x], [x.ctypes.data], [np.float32], [[2, 3]], [device])
batch.shrink_to_fit()
tell("batch", lambda: batch[0].numpy().tolist())
binding = C.SessionIOBinding(native)
binding.bind_input("x", device, np.float32, [2, 3], x.ctypes.data)
binding.bind_output("y", device)
native.run_with_iobinding(binding, None)
tell("binding", lambda: (type(binding.get_outputs()) is C.OrtValueVector, binding.copy_outputs_to_cpu()[0].tolist()))
binding.bind_input("x", x + 1)
binding.bind_ortvalue_output("y", value)
native.run_with_iobinding(binding, None)
tell("into a value", lambda: value.numpy().tolist())
outer = session.io_binding()
outer.bind_ortvalue_input("x", wrapped)
outer.bind_output("y")
session.run_with_iobinding(outer)
tell("outer binding", lambda: (type(outer._iobinding) is C.SessionIOBinding, outer._iobinding.get_outputs()[0].shape(), list(outer._bound_inputs)))
tell("outer vector", lambda: (type(outer.get_outputs_as_ortvaluevector()) is C.OrtValueVector, len(outer.get_outputs_as_ortvaluevector())))
made = C.InferenceSession(ort.SessionOptions(), data, False, False)
made.initialize_session(["CPUExecutionProvider"], [{}], set())
tell("made", lambda: made.run(["y"], {"x": x}, None)[0].shape)
tell("default options", lambda: C.get_default_session_options().intra_op_num_threads)
capsule = wrapped.__dlpack__()
tell("capsule", lambda: (ort.OrtValue.from_dlpack(capsule).shape(), wrapped.__dlpack_device__(), wrapped._ortvalue.to_dlpack() is not None))
tell("bool", lambda: ort.OrtValue.from_dlpack(np.array([True, False])).data_type())
tell("no capsule", lambda: ort.OrtValue.from_dlpack(3))
sparse = ort.SparseTensor.sparse_coo_from_numpy([3, 3], np.ones(2, np.float32), np.array([1, 5]), ort.OrtDevice.make("cpu", 0))
inner = sparse._tensor
tell("sparse", lambda: (type(inner) is C.SparseTensor, str(inner.format), inner.get_coo_data().indices().tolist(), inner.values().tolist()))
tell("not blocks", lambda: type(inner.get_blocksparse_data()))
blocks = C.SparseTensor.blocksparse_from_numpy([4, 4], np.ones((2, 2, 2), np.float32), np.array([[0, 1], [0, 1]], np.int32), device)
tell("blocks", lambda: (str(blocks.format), blocks.values().shape, blocks.dense_shape(), blocks.data_type(), blocks.device_name()))
tell("value of sparse", lambda: C.OrtValue.ort_value_from_sparse_tensor(inner).is_sparse_tensor())

class Pickled(ort.InferenceSession):
    def __init__(self, path):
        super().__init__(path, providers=["CPUExecutionProvider"])
        self.path = path
    def __getstate__(self):
        return {"path": self.path}
    def __setstate__(self, state):
        self.__init__(state["path"])

import pickle
tell("pickled", lambda: pickle.loads(pickle.dumps(Pickled(data))).run(None, {"x": x})[0].tolist())
tell("not pickled", lambda: pickle.dumps(session))
tell("devices", lambda: (C.get_hardware_devices()[0].type, C.get_hardware_device_ep_incompatibility_details("CPUExecutionProvider", C.get_hardware_devices()[0])))
cpu = [one for one in ort.get_ep_devices() if one.ep_name == "CPUExecutionProvider"]
tell("compatible", lambda: C.get_model_compatibility_for_ep_devices(cpu, "x"))
told = model([helper.make_node("Neg", ["x"], ["y"])], [("x", 1, [1])], [("y", 1, [1])], **{"ep_compatibility_info.Some": "v1"})
tell("information", lambda: [C.get_compatibility_info_from_model_bytes(told.SerializeToString(), name) for name in ("Some", "Other")])
tell("no information", lambda: C.get_compatibility_info_from_model("no_such.onnx", "Some"))
for function, arguments in {
    C.get_model_compatibility_for_ep_devices: [(cpu, None), (cpu, 3), ([], None), ([], "x"), (None, "x"), ([1], "x"), (iter(cpu), "x"), (tuple(cpu), b"x"), (cpu,)],
    C.get_hardware_device_ep_incompatibility_details: [(None, None), (3, None), ("none", 1), ("none", None), (b"none", None), ()],
    C.get_compatibility_info_from_model: [(None, "x"), ("none.onnx", None), (b"none.onnx", "x"), (3, 4), ("none.onnx", chr(0xD800))],
    C.get_compatibility_info_from_model_bytes: [(None, "x"), ("x", "x"), (b"", None), (b"", "x"), (bytearray(), b"x"), (3, 4)],
}.items():
    for given in arguments:
        tell(f"{function.__name__} {len(given)}", lambda: function(*given))
tell("by name", lambda: C.get_model_compatibility_for_ep_devices(ep_devices=cpu, compatibility_info="x"))
ort.set_default_logger_severity(3)
tell("with settings", lambda: ort.InferenceSession(data, ort.SessionOptions(), providers=["CPUExecutionProvider"]).get_inputs()[0].name)
"""

FILES_IN_MEMORY = """
w = np.arange(8, dtype=np.float32)
tensor = TensorProto(name="w", data_type=1, dims=[8], data_location=TensorProto.EXTERNAL)
for key, text in {"location": "w.bin", "offset": "0", "length": "32"}.items():
    tensor.external_data.add(key=key, value=text)
data = model([helper.make_node("Add", ["x", "w"], ["y"])], [("x", 1, [8])], [("y", 1, [8])], [tensor]).SerializeToString()
CASES = {
    "bytes": (["w.bin"], [w.tobytes()], [32]),
    "bytearray": (["w.bin"], [bytearray(w.tobytes())], [32]),
    "array": (("w.bin",), (w,), (32,)),
    "view": (["w.bin"], [memoryview(w.tobytes())], [32]),
    "short": (["w.bin"], [w.tobytes()], [31]),
    "no length": (["w.bin"], [w.tobytes()], []),
    "another name": (["v.bin"], [w.tobytes()], [32]),
    "no name": ([3], [w.tobytes()], [32]),
    "text": (["w.bin"], ["text"], [4]),
    "one name": ("w.bin", w.tobytes(), 32),
    "twice": (["w.bin"] * 2, [w.tobytes()] * 2, [32] * 2),
}
for name, arguments in CASES.items():
    options = ort.SessionOptions()
    tell(name, lambda: options.add_external_initializers_from_files_in_memory(*arguments))
    feeds = {"x": np.zeros(8, np.float32)}
    if name not in ("no length", "no name", "text", "one name"):
        tell(name, lambda: ort.InferenceSession(data, options, providers=["CPUExecutionProvider"], enable_fallback=0).run(None, feeds)[0].tolist())
"""

CONFIG = """
import json
CASES = [None, {}, [], {"session_options": []}, {"session_options": {"unknown": 3}}]
for changed in (
    dict(inter_op_num_threads=5, intra_op_num_threads=2, execution_mode=1, graph_optimization_level=99, enable_profiling=0),
    dict(graph_optimization_level=3, intra_op_num_threads=-1), dict(execution_mode=7), dict(graph_optimization_level=57),
    dict(intra_op_num_threads="a"), dict(intra_op_num_threads=1.5), dict(enable_profiling=2), dict(enable_profiling=True),
):
    CASES.append({"session_options": changed})
NAMES = ("inter_op_num_threads", "intra_op_num_threads", "execution_mode", "graph_optimization_level", "logid")

def opened(case, options, **keywords):
    props = {} if case is None else {"ort_config": json.dumps(case)}
    data = model([helper.make_node("Neg", ["x"], ["y"])], [("x", 1, [1])], [("y", 1, [1])], **props).SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"], enable_fallback=0, **keywords)
    return [str(getattr(session.get_session_options(), name)) for name in NAMES]

for case in CASES:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.logid = 3, "mine"
    for variable in ("0", "1"):
        os.environ["ORT_LOAD_CONFIG_FROM_MODEL"] = variable
        tell((variable, case), lambda: opened(case, options))
    tell(case, lambda: opened(case, None, read_config_from_model=1))
    try:
        opened(case, None, read_config_from_model=0)
    except RuntimeError as error:
        print("not parsed", "needs to be parsed" in str(error))
"""

COMPILER = """
nodes = [helper.make_node(*one) for one in (("Add", ["x", "w"], ["a"]), ("Identity", ["a"], ["i"]), ("Relu", ["i"], ["y"]))]
made = model(nodes, [("x", 1, [8])], [("y", 1, [8])], [numpy_helper.from_array(np.ones(8, np.float32), "w")])
onnx.save(made, "m.onnx")
data = made.SerializeToString()
F, L = ort.OrtCompileApiFlags, ort.GraphOptimizationLevel

def cpu():
    options = ort.SessionOptions()
    options.add_provider("CPUExecutionProvider", {})
    return options

def operators(compiled):
    return [node.op_type for node in onnx.load_from_string(compiled).graph.node]

def to_file(model, flags):
    ort.ModelCompiler(cpu(), model, flags=flags).compile_to_file("out.onnx")
    with open("out.onnx", "rb") as file:
        return operators(file.read())

for flags in (F.NONE, F.ERROR_IF_NO_NODES_COMPILED, F.ERROR_IF_OUTPUT_FILE_EXISTS, 3):
    for given in ("m.onnx", data):
        tell((int(flags), given == data), lambda: to_file(given, flags))
        with open("out.onnx", "wb") as file:
            file.write(b"there")
        tell("there", lambda: to_file(given, flags))
        os.unlink("out.onnx")
tell("no model", lambda: to_file("nope.onnx", 0))
tell("rubbish", lambda: to_file(b"rubbish", 0))
tell("without providers", lambda: operators(ort.ModelCompiler(ort.SessionOptions(), data).compile_to_bytes()))
for level in (L.ORT_DISABLE_ALL, L.ORT_ENABLE_BASIC):
    tell(level, lambda: operators(ort.ModelCompiler(cpu(), data, graph_optimization_level=level).compile_to_bytes()))
pieces = []
tell("stream", lambda: ort.ModelCompiler(cpu(), data).compile_to_stream(pieces.append))
tell("pieces", lambda: operators(b"".join(pieces)))
print(sorted(os.listdir(".")))
"""

TOOLS = """
schemas, kernels = C.get_all_operator_schema(), C.get_all_opkernel_def()
tell("schemas", lambda: sorted((one.domain, one.name, one.since_version, one.min_input, one.max_output, one.doc) for one in schemas))
conv = next(one for one in schemas if (one.name, one.domain) == ("Conv", ""))
tell("inputs", lambda: [(one.name, one.typeStr, one.types == {"tensor(float)"}, one.isHomogeneous) for one in conv.inputs])
tell("attributes", lambda: sorted((name, one.required, one.description) for name, one in conv.attributes.items()))
tell("types", lambda: [(one.type_param_str, one.allowed_type_strs) for one in conv.type_constraints])
tell("kernels", lambda: sorted((one.provider, one.op_name, one.domain, one.version_range, sorted(one.type_constraints)) for one in kernels if one.provider == "CPUExecutionProvider"))
weights = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
for bits, blob in ((4, 16), (8, 32), (2, 8)):
    packed = np.zeros((8, 2, blob), np.uint8)
    scales, zeros = np.zeros((8, 2), np.float32), np.zeros((8, max(1, 2 * bits // 8)), np.uint8)
    quantize = getattr(C, f"quantize_matmul_{bits}bits")
    tell(bits, lambda: quantize(packed, weights, scales, zeros, 32, 8, 64, False))
    print(packed.tobytes().hex(), scales.tobytes().hex(), zeros.tobytes().hex())
tell("nonsense", lambda: C.quantize_matmul_4bits(1, 2))
"""
SURROUNDINGS = """
import copy, importlib.metadata as md, importlib.util, inspect, pickle, pkgutil
tell("names", lambda: (ort.__name__, ort.__package__, C.__name__, ort.InferenceSession.__module__))
for absent in ("onnxruntime.absent", "onnxruntime.capi.absent", "onnxruntime.tools.absent"):
    tell("spec of " + absent, lambda: importlib.util.find_spec(absent))
    tell("import of " + absent, lambda: importlib.import_module(absent))
tell("packages", lambda: set(md.packages_distributions()["onnxruntime"]))
tell("requires", lambda: md.requires("onnxruntime"))
files = md.files("onnxruntime")
tell("files", lambda: (len(files), next(f for f in files if f.name == "LICENSE").locate().is_file()))
tell("modules", lambda: sorted(m.name for m in pkgutil.iter_modules(ort.__path__, "onnxruntime.")))
names = {}
exec("from onnxruntime import *", names)
tell("star", lambda: sorted(names.keys() - {"__builtins__", "contextlib", "tools"}))
tell("file of a class", lambda: os.path.basename(inspect.getfile(ort.InferenceSession)))
tell("module of a class", lambda: inspect.getmodule(ort.InferenceSession).__name__)
data = model([helper.make_node("Mul", ["x", "x"], ["y"])], [("x", 1, [2])], [("y", 1, [2])]).SerializeToString()
session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
x = np.ones(2, np.float32)
tell("copy", lambda: copy.copy(session).run(None, {"x": x})[0].tolist())
tell("after the copy", lambda: session.run(None, {"x": x})[0].tolist())
tell("deep copy", lambda: copy.deepcopy(session))
def wrong(attempt):
    try:
        attempt()
    except Exception as error:
        back = pickle.loads(pickle.dumps(error))
        return type(error).__name__, type(error).__module__, type(back).__name__, isinstance(error.args[0], str)
tell("no input", lambda: wrong(lambda: session.run(None, {})))
tell("no file", lambda: wrong(lambda: ort.InferenceSession("absent.onnx")))
tell("no model", lambda: wrong(lambda: ort.InferenceSession(5)))
tell("no entry", lambda: wrong(lambda: ort.SessionOptions().get_session_config_entry("absent")))
"""

PROGRAMS = {
    "surroundings": SURROUNDINGS,
    "compiler": COMPILER,
    "tools": TOOLS,
    "inner": INNER,
    "files in memory": FILES_IN_MEMORY,
    "config": CONFIG,
}


# Run all programs in one process, each with its own names and folder, and print a marker before the output of each.
# The compiler comes first, since after the others ONNX Runtime's own compiler no longer refuses an existing output.
_ALL = """
import json, os, sys
told, programs = json.loads(sys.stdin.read())
for name, program in programs.items():
    os.mkdir(name)
    os.chdir(name)
    print(f"<<{name}>>", flush=True)
    exec(told + program, {"__name__": "__main__"})
    os.chdir("..")
"""


def printed(folder: Path, *arguments: str) -> dict[str, list[str]]:
    ran = subprocess.run(
        [sys.executable, "-c", _ALL, *arguments],
        cwd=folder,
        env={**os.environ, "QNNBRIDGE_HOST_PYTHON": sys.executable},
        input=json.dumps([_TOLD, PROGRAMS]),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    parts = re.split(r"^<<(.*)>>\n", ran.stdout, flags=re.MULTILINE)
    texts = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {name: text.replace(f"{folder / name}{os.sep}", "").splitlines() for name, text in texts.items()}


@pytest.fixture(scope="module")
def both(
    private_temporary_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    return printed(tmp_path_factory.mktemp("theirs")), printed(tmp_path_factory.mktemp("ours"), "ours")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_the_same_as_in_process(
    name: str, both: tuple[dict[str, list[str]], dict[str, list[str]]]
) -> None:
    theirs, ours = (side[name] for side in both)
    assert len(theirs) > 10
    assert [pair for pair in zip(theirs, ours, strict=False) if not same(*pair)] == []
    assert len(ours) == len(theirs)


def same(theirs: str, ours: str) -> bool:
    """Return whether both lines are equal, apart from ONNX Runtime's source location or pybind's list of
    signatures.
    """
    if theirs == ours:
        return True
    if "incompatible function arguments" in theirs:
        return theirs[: theirs.index("Error ")] == ours[: max(0, ours.find("Error "))]
    before, found, after = theirs.partition("/onnxruntime_src")
    return bool(found) and ours.startswith(before) and ours.removeprefix(before).strip() in after
