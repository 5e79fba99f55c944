"""``python -m lab.attack [NAME ...]``: attack all interfaces at random; exit code 1 if a fault is found.

Names: streams (damaged byte streams for running hosts), frames (damaged frames in process), hosts (hostile hosts),
http (mutated requests for a real `qnnbridge serve`), serving (small requests that once stopped the server, while an
ordinary client works), compiled (damaged compiled models), entries (damaged cache entries), swaps (models and
entries that are replaced while they are read), models (hostile models for the tools), storm (kills the host again
as soon as a call has recovered), interrupts (exceptions that a signal handler raises in calls, at random and at
every checkpoint of a call), daemon (half-open connections, overwritten shared memory, stopped processes), users
(another user of the machine), surroundings (environment, limits), names (names with terminal escape sequences, for
every command). Default: all. ``--scale`` sets the length: 1 takes a few minutes; the results in
docs/dev/verification.md were measured with 100.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from lab.attack.report import Report


def streams(scale: float, seed: int) -> Report:
    from lab.attack.streams import attack

    return attack(max(1, int(30 * scale)), seed)


def frames(scale: float, seed: int) -> Report:
    from tests.fuzz import fuzz_wire

    report = Report("frames")
    try:
        checked, taken = fuzz_wire.run(seed, inputs=max(1, int(2_000 * scale)))
        report.count("inputs", checked)
        report.count("frames", taken)
    except fuzz_wire.InputError as error:
        report.finding(f"{error.__cause__!r}: {error.data.hex()}")
    return report


def hosts(scale: float, seed: int) -> Report:
    from lab.attack.hosts import attack

    return attack(max(1, int(10 * scale)), seed)


def http(scale: float, seed: int) -> Report:
    from tests.serve.serving import PRIVATE, serving

    from lab.attack import http as attacks
    from lab.attack.compiled import COMPILED

    with serving(*PRIVATE, "--model", f"mul_1={COMPILED.parent / 'mul_1.onnx'}") as server:
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.append(server.errors()))
        reader.start()
        report = attacks.attack(server.address, "mul_1", max(1, int(400 * scale)), seed)
        report.add(attacks.half_open(server.address, min(1000, int(100 * scale)), seed))
        server.end()
        reader.join()
    for finding in attacks.log_findings(said[0]):
        report.finding(finding)
    return report


def serving(scale: float, seed: int) -> Report:
    from tests.serve.attacked import attacked

    return attacked(max(10.0, 6 * scale), seed)


def compiled(scale: float, seed: int) -> Report:
    from lab.attack.compiled import attack

    return attack(max(1, int(20 * scale)), seed)


def models(scale: float, seed: int) -> Report:
    from lab.attack.models import TOOLS, attack

    tools = ("analyze",) if scale < 10 else tuple(TOOLS)
    short = ("gigantic_range", "exponential_functions", "doubling_sizes", "gigantic_tile")
    return attack(tools, () if scale >= 10 else short)


def storm(scale: float, seed: int) -> Report:
    from lab.faultlab.killing import kill_under_load
    from lab.faultlab.models import new_host, scripted

    calls = max(8, int(50 * scale))
    result = kill_under_load(new_host(False), scripted(), calls=calls, kills=None, threads=8, seed=seed, storm=True)
    report = Report("storm")
    report.count("calls", result.calls)
    report.count("kills", result.kills)
    report.expect(result.good, str(result))
    return report


def interrupts(scale: float, seed: int) -> Report:
    from lab.attack.interrupts import attack

    return attack(max(20, int(40 * scale)), seed)


def entries(scale: float, seed: int) -> Report:
    from lab.attack.entries import attack

    return attack(max(1, int(10 * scale)), seed)


def swaps(scale: float, seed: int) -> Report:
    from lab.attack.swaps import attack

    return attack(max(1, int(3 * scale)), seed)


def daemon(scale: float, seed: int) -> Report:
    from lab.attack.daemon import attack

    return attack(scale, seed)


def users(scale: float, seed: int) -> Report:
    from lab.attack.users import attack

    return attack(scale, seed)


def surroundings(scale: float, seed: int) -> Report:
    from lab.attack.surroundings import attack

    return attack()


def names(scale: float, seed: int) -> Report:
    from lab.attack.names import TOOLS, attack

    return attack(
        tuple(TOOLS) if scale >= 10 else ("run", "analyze", "optimize"), () if scale >= 10 else ("operator", "a")
    )


ATTACKS: dict[str, Callable[[float, int], Report]] = {
    attack.__name__: attack
    for attack in (
        streams,
        frames,
        hosts,
        http,
        serving,
        compiled,
        entries,
        swaps,
        models,
        storm,
        interrupts,
        daemon,
        users,
        surroundings,
        names,
    )
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.attack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*ATTACKS, []], metavar="NAME")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--scale", type=float, default=1.0, metavar="X")
    parser.add_argument("--rows", action="store_true", help="also print the tables of attacks")
    options = parser.parse_args()
    # Suppress log messages about crashes: the output has one line per attack.
    logging.getLogger().addHandler(logging.NullHandler())
    good = True
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        # Keep the user's folders unchanged.
        for name in ("CACHE", "STATE", "RUNTIME"):
            os.environ[f"QNNBRIDGE_{name}_DIR"] = os.path.join(folder, name.lower())
        for name in options.names or ATTACKS:
            begin = time.monotonic()
            report = ATTACKS[name](options.scale, options.seed)
            good &= report.good
            first, *findings = str(report).splitlines()
            rows = report.rows if options.rows else []
            print("\n".join([f"{first} ({time.monotonic() - begin:.0f} s)", *rows, *findings]), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
