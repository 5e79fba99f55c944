"""What `qnnbridge host status` prints for a person."""

from __future__ import annotations

from qnnbridge_tools import output
from qnnbridge_tools.host import figures_text as words
from qnnbridge_tools.host.figures import Figures
from qnnbridge_tools.output import size_text


def print_status(figures: Figures) -> None:
    output.print_pairs("Daemon", _daemon_pairs(figures))
    output.print_pairs("NPU host", _host_pairs(figures))
    output.print_pairs("Work", _work_pairs(figures))
    if figures.clients:
        print("\nClients")
        output.print_table(words.CLIENT_HEADERS, [words.client_row(client) for client in figures.clients])
    if figures.models:
        print("\nModels")
        output.print_table(words.MODEL_HEADERS, [words.model_row(model) for model in figures.models])


def _daemon_pairs(figures: Figures) -> list[tuple[str, str]]:
    daemon = figures.daemon
    pairs = [
        ("running", f"for {words.duration(daemon.uptime_s)}, pid {daemon.pid}"),
        ("version", f"qnnbridge {daemon.qnnbridge}, Python {daemon.python}"),
        ("endpoint", daemon.endpoint),
        ("log", daemon.log_file),
        ("memory", f"{size_text(figures.daemon_rss_bytes)}; shared with clients {size_text(figures.shared_bytes)}"),
    ]
    if daemon.idle_exit_s:
        pairs.append(("leaves", f"after {words.duration(daemon.idle_exit_s)} without a client"))
    if daemon.idle_unload_s:
        pairs.append(("unloads", f"a model after {words.duration(daemon.idle_unload_s)} without a call"))
    return [pair for pair in pairs if pair[1]]


def _host_pairs(figures: Figures) -> list[tuple[str, str]]:
    pairs = [("host", words.host_text(figures.host))]
    if figures.host.generation:
        pairs.append(("history", words.restarts_text(figures.host)))
    if figures.host.last_crash:
        pairs.append(("last crash", figures.host.last_crash.splitlines()[0]))
        pairs.append(("", "`qnnbridge crashes show last` shows why."))
    return pairs


def _work_pairs(figures: Figures) -> list[tuple[str, str]]:
    return [
        ("calls", words.totals_text(figures)),
        ("queue", words.queue_text(figures)),
        ("sessions", words.sessions_text(figures)),
        (
            "clients",
            f"{len(figures.clients)} connected now; {words.count_text(figures.totals.clients)} connections so far",
        ),
    ]
