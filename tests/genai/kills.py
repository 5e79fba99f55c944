"""Generations while the host is killed: ``python -m tests.genai.kills [--generations N] [--kills N]``.

Each text is compared with the text of an earlier run without kills. The program prints one line for each model.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import qnnbridge
from qnnbridge import genai
from tests.genai.tiny_decoders import write_model


@dataclasses.dataclass
class KillReport:
    """Outcome of a run. equal: number of generations whose tokens equal those without kills."""

    generations: int
    equal: int
    kills: int
    seconds: float
    longest_pause_s: float


class Killer:
    def __init__(self, host: qnnbridge.Host) -> None:
        self._host = host
        self.kills = 0

    def kill(self) -> None:
        """Kill the running host, or the host that is started for this."""
        self._host.start()
        process = self._host.supervisor.running
        if process is not None:
            with contextlib.suppress(OSError):
                os.kill(process.real_pid, signal.SIGKILL)
                self.kills += 1
                process.exit_code()


def _prompt(number: int) -> list[int]:
    rng = random.Random(number)
    return [rng.randrange(4, 290) for _ in range(rng.randrange(3, 50))]


def _generate(
    model: genai.Model, number: int, tokens: int, killer: Killer, kill_at: set[int]
) -> tuple[list[int], float]:
    one = genai.Generator(model, genai.GeneratorParams(model))
    one.append_tokens(_prompt(number))
    made, longest = [], 0.0
    while len(made) < tokens and not one.is_done():
        if len(made) in kill_at:
            killer.kill()
        begin = time.perf_counter()
        one.generate_next_token()
        longest = max(longest, time.perf_counter() - begin)
        made.append(int(one.get_next_tokens()[0]))
    return made, longest


def run(
    folder: Path, generations: int, kills: int, tokens: int, seed: int, python: Path | None = None
) -> KillReport:
    """Generate with and without kills. Several kills may hit one generation. python: interpreter of the host."""
    rng = random.Random(seed)
    plan: dict[int, set[int]] = {}
    while sum(map(len, plan.values())) < kills:
        plan.setdefault(rng.randrange(generations), set()).add(rng.randrange(tokens))
    with qnnbridge.Host(python=python) as host:
        killer = Killer(host)
        model = genai.Model(folder, host=host)
        expected = [_generate(model, number, tokens, killer, set())[0] for number in range(generations)]
        begin, equal, longest = time.perf_counter(), 0, 0.0
        for number in range(generations):
            made, pause = _generate(model, number, tokens, killer, plan.get(number, set()))
            equal += made == expected[number] and len(made) == tokens
            longest = max(longest, pause)
        return KillReport(generations, equal, killer.kills, time.perf_counter() - begin, longest)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--generations", type=int, default=200)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--sliding", type=Path, help="a host's Python with onnxruntime-genai 0.15.2, for that layout"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        rows = [("dynamic", False), ("window", False), ("window", True)]
        if arguments.sliding is not None:
            rows = [("sliding", False), ("sliding", True)]
        for layout, qnn in rows:
            folder = write_model(Path(root) / f"{layout}-{qnn}", layout, qnn=qnn)
            told = run(
                folder, arguments.generations, arguments.kills, arguments.tokens, arguments.seed, arguments.sliding
            )
            where = "simulator" if qnn else "CPU"
            print(
                f"{layout}, {where}: {told.equal} of {told.generations} texts equal, {told.kills} kills, "
                f"{told.seconds:.0f} s, longest pause {told.longest_pause_s:.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
