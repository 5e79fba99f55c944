"""Compare the rules of `qnnbridge analyze` with QNN: `python -m lab.analyze_accuracy [--record] [SET ...]`.

Sets: node (the node tests of onnx), constants (the node tests with all inputs but the first as constants), real
(real models: unchanged, after `qnnbridge fix`, and quantised), traps (models that crash QNN). Default: all. A run
takes about twenty minutes; the simulator runs in a separate process, one model at a time. `--record` stores QNN's
results of the node tests for `tests/tools/test_tools_analyze_accuracy.py`, which does not need the simulator.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from lab.analyze_accuracy import cases, compare, recorded, simulator
from qnnbridge_host.model.chips import chip_named


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.analyze_accuracy")
    parser.add_argument("sets", nargs="*", choices=[[], *cases.SETS], default=[], metavar="SET")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--soc", default="60")
    chosen = parser.parse_args()
    chip = chip_named(chosen.soc)
    assert chip is not None, "unknown chip"
    missed = 0
    for name in chosen.sets or list(cases.SETS):
        with tempfile.TemporaryDirectory() as folder:
            models = cases.SETS[name](Path(folder))
            truths = simulator.ask(models, chosen.soc)
            tally = compare.tally_of(models, truths, chip.arch)
        print(f"== {name}\n{tally}", flush=True)
        missed += len(tally.crashes_missed)
        if chosen.record and name == "node":
            recorded.write(truths)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
