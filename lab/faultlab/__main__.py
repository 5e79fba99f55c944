"""``python -m lab.faultlab``: faults under load, for any duration.

By default, all kinds of faults occur at random for ``--seconds``, and each published promise is reported with its
result. ``--calls N --kills M`` makes N calls while the host is killed with -9 M times; each result must be right in
every bit. With ``--storm`` the host is killed as soon as any call has recovered. ``--orphans N`` kills N
applications with -9 in each of `orphans.STATES` and checks that their hosts end. ``--mixed N`` makes N calls on the
fast path with all sizes, call options and numbers of threads, and kills hosts. ``--slots N`` kills N hosts while
both sides hold shared memory. ``--daemon N`` runs N applications of one daemon for ``--seconds``, while its host is
killed every ``--kill-every`` seconds. The exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import random
import statistics
import sys
import tempfile
import warnings
from pathlib import Path

from lab.faultlab.killing import kill_under_load
from lab.faultlab.models import new_host, real, scripted
from lab.faultlab.orphans import END_TIMEOUT_S, STATES, kill_an_application
from lab.faultlab.slots import kill_hosts
from lab.faultlab.soak import Soak

STUCK_AFTER_S = 300.0
DEFAULT_KILLS = 200


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.faultlab", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the test with random faults")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--calls", type=int, help="number of calls while the host is killed, for example 10000")
    parser.add_argument("--kills", type=int, help="number of kills, default 200")
    parser.add_argument(
        "--storm",
        action="store_true",
        help="with --calls: kill each new host after its first answer; without --kills, until all calls have ended",
    )
    parser.add_argument("--mixed", type=int, metavar="N", help="make N calls of all sizes, for example 1000000")
    parser.add_argument(
        "--no-shared-memory", dest="shared_memory", action="store_false", help="send tensors through the pipes"
    )
    parser.add_argument("--daemon", type=int, metavar="N", help="run N applications of one daemon, for example 8")
    parser.add_argument(
        "--kill-every", type=float, default=3.0, metavar="S", help="with --daemon: seconds between two kills"
    )
    parser.add_argument("--slots", type=int, metavar="N", help="kill N hosts while shared memory is in use")
    parser.add_argument("--orphans", type=int, help="how many applications to kill in each state")
    parser.add_argument("--real", action="store_true", help="use the QNN simulator instead of the scripted engine")
    parser.add_argument("--log", action="store_true", help="show the log of the bridge")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING if options.log else logging.CRITICAL)
    print(f"seed {options.seed}", flush=True)
    if not options.shared_memory:
        os.environ["QNNBRIDGE_SHARED_MEMORY"] = "0"
    with tempfile.TemporaryDirectory(prefix="faultlab-") as folder:
        # Keep reports and quarantine of this run out of the user's folders.
        os.environ["QNNBRIDGE_STATE_DIR"] = os.path.join(folder, "state")
        if options.orphans:
            good = _orphans(options.orphans)
        elif options.slots:
            result = kill_hosts(options.slots)
            print(result)
            good = result.good
        elif options.mixed:
            good = _mixed(options)
        elif options.daemon:
            good = _daemon(options, folder)
        else:
            good = _show(options) if options.calls else _soak(options, Path(folder))
    return 0 if good else 1


def _orphans(times: int) -> bool:
    good = True
    for state in STATES:
        seconds = [kill_an_application(state) for _ in range(times)]
        ended = [s for s in seconds if s is not None]
        good &= len(ended) == times
        figures = (
            f", median {statistics.median(ended) * 1000:.0f} ms, worst {max(ended) * 1000:.0f} ms" if ended else ""
        )
        print(f"{state:9} {len(ended)} of {times} hosts gone within {END_TIMEOUT_S:g} s{figures}", flush=True)
    return good


def _show(options: argparse.Namespace) -> bool:
    cases = real() if options.real else scripted()
    result = kill_under_load(
        new_host(options.real),
        cases,
        calls=options.calls,
        kills=options.kills if options.storm else options.kills or DEFAULT_KILLS,
        threads=options.threads,
        seed=options.seed,
        storm=options.storm,
    )
    print(result)
    return result.good


def _mixed(options: argparse.Namespace) -> bool:
    import qnnbridge
    from lab.faultlab.mixed import HEAP_SETTING, mixed_soak
    from qnnbridge_tools.bench.work import ASSETS

    warnings.simplefilter("ignore", qnnbridge.CpuFallbackWarning)
    host = qnnbridge.Host(env=HEAP_SETTING)
    result = mixed_soak(
        host,
        ASSETS / "add.onnx",
        calls=options.mixed,
        kills=options.kills or DEFAULT_KILLS,
        seed=options.seed,
        on_progress=lambda words: print(words, flush=True),
    )
    print(result)
    return result.good


def _daemon(options: argparse.Namespace, folder: str) -> bool:
    from lab.faultlab.shared_daemon import daemon_soak

    for name in ("RUNTIME", "CACHE"):
        os.environ[f"QNNBRIDGE_{name}_DIR"] = os.path.join(folder, name.lower())
    result = daemon_soak(
        clients=options.daemon, seconds=options.seconds, kill_every_s=options.kill_every, seed=options.seed
    )
    print(result)
    return result.good


def _soak(options: argparse.Namespace, folder: Path) -> bool:
    # Print all stacks if the run does not end.
    faulthandler.dump_traceback_later(options.seconds + STUCK_AFTER_S, exit=True)
    cases = real() if options.real else scripted()
    soak = Soak(
        new_host(options.real),
        cases,
        seconds=options.seconds,
        seed=options.seed,
        threads=options.threads,
        folder=folder,
        real=options.real,
    )
    ledger = soak.run()
    faulthandler.cancel_dump_traceback_later()
    stats = soak.stats
    print(
        f"{soak.calls} calls, {soak.faults} faults, {stats.crashes} crashes of the host, {stats.retried_calls} repeated"
    )
    print(ledger)
    return ledger.kept


if __name__ == "__main__":
    sys.exit(main())
