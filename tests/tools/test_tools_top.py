"""`qnnbridge top`: orders, pages that fit their window, keys, and a daemon that starts and ends. The tests need no
daemon."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest
from tests import needs
from tests.tools.daemon_documents import busy_daemon, idle_daemon

from qnnbridge_protocol.errors import HostCrashed
from qnnbridge_tools.host.figures import Figures, read_figures
from qnnbridge_tools.top import Page, SortOrder, after_key, draw, in_order, refreshed

INTERVAL_S = 1.0


def figures(document: dict[str, Any] | None = None) -> Figures:
    return read_figures(document or busy_daemon())


def drawn(page: Page, width: int = 160, height: int = 40) -> list[str]:
    from rich.console import Console

    console = Console(width=width, height=height, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(draw(page, width, height))
    return [line.rstrip() for line in capture.get().splitlines()]


def page(found: Figures | None = None, **changes: Any) -> Page:
    return dataclasses.replace(Page(found, SortOrder.RATE, False, INTERVAL_S), **changes)


def crowd(clients: int, models: int) -> Figures:
    document = busy_daemon()
    client, model = document["clients"][0], document["models"][0]
    document["clients"] = [{**client, "id": n, "pid": 6000 + n, "calls_per_s": float(n)} for n in range(clients)]
    document["models"] = [{**model, "key": f"{n:064}", "label": f"m{n}.onnx"} for n in range(models)]
    return figures(document)


def test_a_page_has_the_important_figures() -> None:
    text = "\n".join(drawn(page(figures())))
    for words in (
        "qnnbridge 0.3.0 daemon, pid 4711, up 3 h 10 min",
        "pid 4720, memory 210.0 MiB, crashed 1, replaced 1; ARM64, NPU, onnxruntime 1.31.1",
        "41.2/s now, 120,305 in all, 2 errors, 7 refused",
        "1 of 4 slots in use, 3 waiting",
        "QNN+CPU (40+2 nodes)",
        "unloaded",
        "12.2 ms",
        "1 run, 3 wait",
        "camera.py",
        "; KV caches 96.0 MiB, 14,400 tokens of 12 prompts reused",
    ):
        assert words in text, words


def test_calls_of_disconnected_clients_count_if_the_daemon_reports_them() -> None:
    document = busy_daemon()
    document["clients"] = []
    assert read_figures(document).calls_per_s == 41.2
    older = busy_daemon()
    del older["totals"]["calls_per_s"]
    assert read_figures(older).calls_per_s == pytest.approx(33.8)


def test_names_with_control_characters_are_shown_escaped() -> None:
    document = busy_daemon()
    document["clients"][1]["name"] = "a\x1b[2Jb"
    document["models"][1]["label"] = "x\x1b]0;y\x07"
    text = "\n".join(drawn(page(figures(document))))
    assert "\x1b" not in text
    assert r"a\x1b[2Jb" in text


@pytest.mark.parametrize("width", [60, 119, 200])
@pytest.mark.parametrize("height", [13, 24])
@pytest.mark.parametrize(("clients", "models"), [(0, 0), (1, 1), (30, 2), (2, 30), (40, 40)])
def test_a_page_fits_its_window_and_ends_with_the_keys(width: int, height: int, clients: int, models: int) -> None:
    lines = drawn(page(crowd(clients, models)), width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert lines[-1].startswith("sorted by rate")
    assert any(line == f"Clients: {clients}" or (not clients and line == "Clients: none") for line in lines)


def test_omitted_lines_are_counted() -> None:
    lines = drawn(page(crowd(40, 1)), 120, 24)
    shown = [line for line in lines if "camera.py" in line]
    assert f"... and {40 - len(shown)} more" in lines


@pytest.mark.parametrize(
    ("order", "clients"),
    [
        (SortOrder.RATE, [5001, 5002]),
        (SortOrder.CALLS, [5001, 5002]),
        (SortOrder.LATENCY, [5002, 5001]),
        (SortOrder.ERRORS, [5001, 5002]),
        (SortOrder.MEMORY, [5001, 5002]),
        (SortOrder.NAME, [5001, 5002]),
    ],
)
def test_rows_are_sorted_by_each_order(order: SortOrder, clients: list[int]) -> None:
    document = busy_daemon()
    document["clients"].reverse()
    assert [client.pid for client in in_order(figures(document), order).clients] == clients
    assert [client.pid for client in in_order(figures(document), order, reverse=True).clients] == clients[::-1]
    assert [model.label for model in in_order(figures(), order).models] == ["detector.onnx", "ocr.onnx"]


def test_keys_change_order_and_direction_and_others_do_nothing() -> None:
    seen = [page()]
    for key in ("s", "s", "r", "x", ""):
        seen.append(after_key(seen[-1], key))
    assert [(one.order, one.reverse) for one in seen] == [
        (SortOrder.RATE, False),
        (SortOrder.CALLS, False),
        (SortOrder.LATENCY, False),
        (SortOrder.LATENCY, True),
        (SortOrder.LATENCY, True),
        (SortOrder.LATENCY, True),
    ]
    assert "sorted by latency, reversed" in drawn(seen[-1])[-1]
    assert list(SortOrder)[-1].next is SortOrder.RATE


def test_a_daemon_that_ends_leaves_the_last_figures_with_the_reason() -> None:
    def gone() -> Figures:
        raise HostCrashed("The qnnbridge daemon closed the connection.")

    before = refreshed(page(), lambda: figures())
    after = refreshed(before, gone)
    lines = drawn(after)
    assert lines[0] == "The qnnbridge daemon closed the connection. Waiting for the daemon ..."
    assert "camera.py" in "\n".join(lines)
    assert refreshed(after, lambda: figures()).note == ""


def test_a_client_that_only_watches_is_not_counted_and_a_working_one_is() -> None:
    document = busy_daemon()
    document["clients"][0].update(pid=os.getpid(), sessions=0)
    document["clients"][1].update(pid=os.getpid(), sessions=1)
    shown = refreshed(page(), lambda: figures(document)).figures
    assert shown is not None
    assert [client.id for client in shown.clients] == ["2"]


def test_a_daemon_without_work_has_a_page() -> None:
    lines = drawn(page(figures(idle_daemon())))
    assert "Clients: none" in lines
    assert "NPU host: not running; starts with the first session; crashed 0, replaced 0" in lines


@needs.posix
def test_a_closed_terminal_ends_the_view_and_restores_the_line_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    import pty
    import sys
    import termios

    from qnnbridge_tools.top import keyboard

    ours, theirs = pty.openpty()
    with open(theirs, closefd=True) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        before = termios.tcgetattr(theirs)
        with keyboard() as wait:
            assert not termios.tcgetattr(theirs)[3] & termios.ICANON
            assert wait(0.0) == ""
            os.write(ours, b"S")
            assert wait(30.0) == "s"
        assert termios.tcgetattr(theirs) == before
        with keyboard() as wait:
            os.close(ours)
            assert wait(30.0) == "q"
