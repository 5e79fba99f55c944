"""Compare the verdicts that sessions report with the truth, for any folder of models.

``python -m lab.verdict_accuracy.sessions FOLDER [NAME ...] --out FILE.jsonl`` runs each ``*.onnx`` of the folder in
two successive processes that share one cache, with five calls each: zeros, a constant, noise, pictures or
sequences, large values. The truth of a call is the result of ONNX Runtime's CPU provider without optimisations, in
another process. A line of the file contains, for each call, the true SNR of its worst output, the share of changed
decisions (the largest value of each row) and ``session.verified`` after the call. The program prints one row per
model; its exit code is 1 if a final verdict contradicts the truth:

- silent: the last verdict is "agrees", but a call is below 20 dB or changed decisions in more than 1 % of the rows.
- false alarm: the last verdict is "differs", but every call has at least 30 dB, and no decision changed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SOC = "60"
KINDS = (("zeros", "noise", "picture", "constant", "large"), ("picture", "sparse", "noise", "zeros", "picture"))
SILENT_DB, RIGHT_DB = 20.0, 30.0
CHANGED_SHARE = 0.01
# Minimum lead of a row's largest value, as a fraction of the output's range, to count as a decision.
CLEAR_LEAD = 0.05
# Minimum lead as a fraction of the largest value: half floats cannot represent smaller differences.
HALF_STEP = 2.0**-10
# Size of free dimensions.
SIZE = 24
LONGEST_MODEL_S = 900
SETTLED_S = 120


def sizes_of(shape: list[Any]) -> list[int]:
    return [dim if isinstance(dim, int) and dim > 0 else (1 if at == 0 else SIZE) for at, dim in enumerate(shape)]


def array(kind: str, shape: list[int], dtype: np.dtype[Any], name: str, most: int, rng: np.random.Generator) -> Any:
    """Return the values of one input. `most` is the largest integer that the model accepts as an index."""
    if dtype.kind == "b" or "mask" in name:
        mask = np.ones(shape)
        if kind not in ("zeros", "constant"):
            mask[..., int(rng.integers(shape[-1] // 2, shape[-1])) :] = 0
        return mask.astype(dtype)
    if dtype.kind in "iu":
        made = {"zeros": np.zeros(shape), "constant": np.ones(shape)}.get(kind)
        return (rng.integers(0, most, shape) if made is None else made).astype(dtype)
    if kind in ("zeros", "constant"):
        return np.full(shape, 0.0 if kind == "zeros" else 0.7, dtype)
    noise = rng.standard_normal(shape)
    if kind == "noise":
        return noise.astype(dtype)
    if kind == "large":
        return (noise * 6).astype(dtype)
    if kind == "sparse":
        return (noise * (rng.random(shape) < 0.02) * 3).astype(dtype)
    line = np.linspace(-1, 1, shape[-1] if shape else 1)
    waves = np.sin(line * rng.uniform(2, 9) + rng.uniform(0, 6)) + (line > rng.uniform(-0.5, 0.5))
    column = np.linspace(-1, 1, shape[-2])[:, None] if len(shape) > 1 else 0
    return (np.broadcast_to(waves * (1 + column), shape) + noise * 0.1).astype(dtype)


def session_options(model: Path) -> tuple[Any, dict[str, list[int]]]:
    """Return a session of ONNX Runtime without optimisations, and the sizes of its inputs."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return session, {value.name: sizes_of(value.shape) for value in session.get_inputs()}


TYPES = {"float": "f4", "float16": "f2", "double": "f8", "bool": "?"}


def truths(model: Path, folder: Path) -> dict[str, Any]:
    """Write inputs and true outputs of all calls to the folder. Return the sizes of the inputs."""
    session, sizes = session_options(model)
    for most in (90, 20, 4, 2):
        calls = []
        try:
            for process, kinds in enumerate(KINDS):
                for number, kind in enumerate(kinds):
                    rng = np.random.default_rng([process, number])
                    feeds = {}
                    for value in session.get_inputs():
                        text = value.type.removeprefix("tensor(").rstrip(")")
                        dtype = np.dtype(TYPES.get(text, text))
                        feeds[value.name] = array(kind, sizes[value.name], dtype, value.name, most, rng)
                    calls.append((feeds, session.run(None, feeds)))
            break
        except Exception:
            if most == 2:
                raise
    for number, (feeds, outputs) in enumerate(calls):
        np.savez(folder / f"in{number}.npz", **feeds)
        np.savez(folder / f"out{number}.npz", **{f"o{at}": value for at, value in enumerate(outputs)})
    return sizes


def judged(truth: list[Any], found: list[Any]) -> tuple[float, float]:
    """Return the SNR of the worst output in decibels, and the largest share of rows whose decision changed."""
    worst, moved = 200.0, 0.0
    for a, b in zip(truth, found, strict=True):
        if a.shape != b.shape:
            return -200.0, 1.0
        if a.dtype.kind not in "fiub" or not a.size:
            continue
        a, b = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(a)
        a, b = np.where(finite, a, 0), np.where(finite, b, 0)
        power, error = float((a**2).sum()), float(((a - b) ** 2).sum())
        if not np.isfinite(error):
            return -200.0, 1.0
        if error:
            worst = min(worst, 10 * float(np.log10(max(power, 1e-12) / error)))
        if a.ndim > 1 and a.shape[-1] > 1:
            # Count a changed decision only if the true value at the chosen index is clearly below the largest true
            # value: near ties do not count.
            top, other = np.argmax(a, -1)[..., None], np.argmax(b, -1)[..., None]
            lead = np.take_along_axis(a, top, -1) - np.take_along_axis(a, other, -1)
            clear = max(CLEAR_LEAD * np.ptp(a), HALF_STEP * np.abs(a).max())
            moved = max(moved, float((lead > clear).mean()))
    return worst, moved


def process(model: Path, folder: Path, number: int) -> list[dict[str, Any]]:
    """Make the five calls of one process and compare each result with the true outputs."""
    import qnnbridge

    warnings.simplefilter("ignore")
    options = qnnbridge.SessionOptions()
    for dimension, size in free_dimensions(model, json.loads((folder / "sizes.json").read_text())).items():
        options.add_free_dimension_override_by_name(dimension, size)
    found = []
    with qnnbridge.Host() as host:
        session = qnnbridge.InferenceSession(
            model,
            options,
            host=host,
            fallback="cpu",
            provider_options=[{"soc_model": SOC}],
            providers=["QNNExecutionProvider"],
        )
        for at, kind in enumerate(KINDS[number]):
            call = number * len(KINDS[0]) + at
            with np.load(folder / f"in{call}.npz") as stored:
                feeds = {name: stored[name] for name in stored.files}
            with np.load(folder / f"out{call}.npz", allow_pickle=True) as stored:
                truth = [stored[name] for name in stored.files]
            snr, moved = judged(truth, [np.asarray(value) for value in session.run(None, feeds)])
            until = time.monotonic() + SETTLED_S
            while session.verified.state == "pending" and time.monotonic() < until:
                time.sleep(0.05)
            said = session.verified
            found.append(
                {
                    "kind": kind,
                    "snr": round(snr, 1),
                    "moved": round(moved, 4),
                    "said": said.state,
                    "text": str(said),
                }
            )
        placement = session.placement
        found[-1]["placement"] = f"{placement}"[:80]
    return found


def free_dimensions(model: Path, sizes: dict[str, list[int]]) -> dict[str, int]:
    import onnx

    graph = onnx.load(str(model), load_external_data=False).graph
    return {
        dim.dim_param: sizes[value.name][at]
        for value in graph.input
        if value.name in sizes
        for at, dim in enumerate(value.type.tensor_type.shape.dim)
        if dim.dim_param
    }


def run_model(model: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {
            **os.environ,
            "QNNBRIDGE_CACHE_DIR": str(folder / "cache"),
            "QNNBRIDGE_STATE_DIR": str(folder / "state"),
        }
        row: dict[str, Any] = {"model": model.name, "processes": []}
        begun = time.monotonic()
        for job in ("truth", "0", "1"):
            command = [
                sys.executable,
                "-m",
                "lab.verdict_accuracy.sessions",
                str(model),
                "--job",
                job,
                "--folder",
                name,
            ]
            try:
                done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LONGEST_MODEL_S)
            except subprocess.TimeoutExpired:
                return {**row, "error": f"{job}: over {LONGEST_MODEL_S} s"}
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if line and not line.startswith(" ")]
                return {**row, "error": f"{job}: {' | '.join(lines[-6:])[:600]}"}
            if job != "truth":
                row["processes"].append(json.loads(done.stdout.splitlines()[-1]))
        row["seconds"] = round(time.monotonic() - begun)
    return {**row, "verdict": verdict_of(row)}


def verdict_of(row: dict[str, Any]) -> str:
    calls = [call for process in row["processes"] for call in process]
    last = calls[-1]["said"]
    # Ignore zeros and constants: their outputs may be near zero, where decibels are meaningless.
    real = [call for call in calls if call["kind"] not in ("zeros", "constant")]
    if last == "agrees" and any(call["snr"] < SILENT_DB or call["moved"] > CHANGED_SHARE for call in real):
        return "SILENT"
    if last == "differs" and all(call["snr"] >= RIGHT_DB and not call["moved"] for call in real):
        return "FALSE ALARM"
    return "as said"


def models(folder: Path, names: list[str]) -> Iterator[Path]:
    for path in sorted(folder.rglob("*.onnx")):
        if not names or any(name in path.name for name in names):
            yield path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.verdict_accuracy.sessions", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--folder", dest="work", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.job == "truth":
        (chosen.work / "sizes.json").write_text(json.dumps(truths(chosen.folder, chosen.work)))
        return 0
    if chosen.job:
        print(json.dumps(process(chosen.folder, chosen.work, int(chosen.job))))
        return 0
    seen = set()
    if chosen.out and chosen.out.exists():
        seen = {json.loads(line)["model"] for line in chosen.out.read_text("utf-8").splitlines()}
    false = []
    print(
        "| model | true SNR of each call | verdict after each call | result | time |\n|---|---|---|---|---|",
        flush=True,
    )
    for model in models(chosen.folder, chosen.names):
        if model.name in seen:
            continue
        row = run_model(model)
        if chosen.out:
            with chosen.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        if "error" in row:
            print(f"| {model.name} | | | {row['error'][:150]} | |", flush=True)
            continue
        calls = [call for one in row["processes"] for call in one]
        if row["verdict"] != "as said":
            false.append(model.name)
        snrs, said = " ".join(f"{call['snr']:.0f}" for call in calls), " ".join(call["said"] for call in calls)
        print(f"| {model.name} | {snrs} | {said} | {row['verdict']} | {row['seconds']} s |", flush=True)
    print(f"\nfalse verdicts: {', '.join(false) or 'none'}")
    return 1 if false else 0


if __name__ == "__main__":
    raise SystemExit(main())
