"""``python -m lab.walk``: the long form of the walks; exit code 1 if a difference is found.

Kinds: alone (one thread with its own sessions), shrink (one thread with Hypothesis, which shrinks failures),
threads, kills (hosts are killed meanwhile), daemon (two applications of one daemon), buckets, cache, serving,
generation, conversations. ``--steps`` is the number of steps of each kind; for conversations, the number of tokens.
The kinds cache and generation make only a hundredth of the steps, because their steps take long.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import qnnbridge
from lab.walk import conversations, crowd, more
from lab.walk.steps import Wrong

STEPS_OF_AN_EXAMPLE = 40


def _hosts(stack: contextlib.ExitStack) -> list[qnnbridge.Host]:
    return [stack.enter_context(qnnbridge.Host(shared_memory=True)) for _ in range(2)]


def _daemon(stack: contextlib.ExitStack) -> list[qnnbridge.Host]:
    from tests.daemon.brokers import lab

    made = stack.enter_context(lab(qnnbridge.Host(shared_memory=True)))
    return [made.client(), made.client()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.walk", description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--only", action="append", metavar="KIND")
    given = parser.parse_args()
    logging.disable()  # each crash would log a line

    def shrink(hosts: list[qnnbridge.Host]) -> int:
        from lab.walk.machine import shrinking_walk

        shrinking_walk(hosts, max(1, given.steps // STEPS_OF_AN_EXAMPLE), STEPS_OF_AN_EXAMPLE, random=True)
        return given.steps

    root = tempfile.TemporaryDirectory()

    def new_folder() -> Path:
        return Path(tempfile.mkdtemp(dir=root.name))

    def further(walk: Callable[..., None], steps: int, *needs: Path) -> int:
        walk(steps, given.seed, *needs)
        return steps

    kinds: dict[str, Callable[[list[qnnbridge.Host]], int]] = {
        "alone": lambda hosts: crowd.alone(hosts, given.steps, given.seed),
        "shrink": shrink,
        "threads": lambda hosts: crowd.crowd(hosts, given.threads, given.steps, given.seed),
        "kills": lambda hosts: crowd.crowd(hosts, given.threads, given.steps, given.seed, kills=True),
        "daemon": lambda hosts: crowd.crowd(hosts, 2, given.steps, given.seed),
        "buckets": lambda _: further(more.buckets, given.steps),
        "cache": lambda _: further(more.cache, given.steps // 100, new_folder()),
        "serving": lambda _: further(more.serving, given.steps, new_folder()),
        "conversations": lambda _: conversations.conversations(given.steps, given.seed, new_folder()).compared,
        "generation": lambda _: further(more.generation, given.steps // 100, new_folder()),
    }
    chosen = given.only or list(kinds)
    os.environ["QNNBRIDGE_CACHE"] = "1"
    if not set(chosen) <= set(kinds):
        parser.error(f"there are {', '.join(kinds)}")
    found = 0
    for kind in chosen:
        begin = time.monotonic()
        try:
            with contextlib.ExitStack() as stack:
                hosts = (_daemon if kind == "daemon" else _hosts)(stack)
                compared = kinds[kind](hosts)
            said = f"{compared} comparisons, nothing found"
        except (Wrong, AssertionError) as error:
            found += 1
            said = f"FOUND:\n{error}"
        print(
            f"{kind}, seed {given.seed}: {given.steps} steps, {time.monotonic() - begin:.0f} s: {said}", flush=True
        )
    root.cleanup()
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
