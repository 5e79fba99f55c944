"""Control a real Chromium over its debugging pipe: one page, real mouse and key events, without a library."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Chromium reads commands from descriptor 3 and answers on descriptor 4.
_ON_3_AND_4 = """
import os, sys
commands, answers = os.dup(int(sys.argv[1])), os.dup(int(sys.argv[2]))
commands, answers = (os.dup2(fd, at) for fd, at in ((commands, 103), (answers, 104)))
os.dup2(commands, 3), os.dup2(answers, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
WIDTH, HEIGHT = 1400, 900
WAIT_S = 20.0


def program() -> str | None:
    """Return the path of a browser, or ``None`` on systems where descriptors cannot be passed to it."""
    if sys.platform != "linux":
        return None
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """A loaded page. `errors` contains everything that the page logs as an error."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = to_browser, from_browser
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._in, 1 << 20)
            assert more, "the browser ended"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(text)
        method, parameters = answer.get("method"), answer.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        return answer

    def open(self, url: str) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self._load("Page.navigate", url=url)

    def reload(self) -> None:
        self._load("Page.reload")

    def _load(self, method: str, **parameters: Any) -> None:
        self.call(method, **parameters)
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def value(self, script: str) -> Any:
        """Evaluate an expression in the page and return its value; wait for promises."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def wait(self, script: str, timeout_s: float = WAIT_S) -> Any:
        """Wait until an expression is true, and return its value."""
        give_up = time.monotonic() + timeout_s
        while True:
            found: Any = None
            try:
                # An element cannot be returned as a value.
                if found := self.value(f"Promise.resolve({script}).then((one) => one instanceof Node || one)"):
                    return found
            except AssertionError as error:  # the page is being loaded again
                found = error
            assert time.monotonic() < give_up, f"never true: {script} ({found}); errors: {self.errors}"
            time.sleep(0.05)

    def click_on(self, element: str) -> None:
        """Click with the mouse in the middle of an element: a selector, or an expression that returns it."""
        found = element if element.startswith(("document.", "[...")) else f"document.querySelector({element!r})"
        # A page that redraws itself may move or remove the element between the look-up and the click. Then the
        # click hits nothing or another element, and is repeated, as a user does. A click that loads a page leaves
        # no `hit`.
        give_up = time.monotonic() + WAIT_S
        while time.monotonic() < give_up:
            x, y, top = self.wait(
                f"(() => {{ const one = {found}; if (!one || one.disabled || !one.getClientRects().length) return null; "
                "one.scrollIntoView({block: 'center'}); const b = one.getClientRects()[0], "
                "x = b.x + b.width / 2, y = b.y + b.height / 2; window.hit = null; "
                "const is = (other) => one.contains(other) || [...one.labels ?? []].some((label) => label.contains(other)); "
                "document.addEventListener('click', (event) => { window.hit = is(event.target); }, {capture: true, once: true}); "
                "return [x, y, is(document.elementFromPoint(x, y))]; })()"
            )
            if not top:
                continue
            self.click(x, y)
            if self.value("window.hit === undefined || window.hit"):
                return
        raise AssertionError(f"{element} is covered by another element or never keeps its place")

    def click_button(self, text: str, within: str = "body") -> None:
        self.click_on(
            f"[...document.querySelectorAll({within + ' button'!r})].find((one) => one.textContent === {text!r} && "
            "one.getClientRects().length)"
        )

    def write(self, selector: str, text: str) -> None:
        """Click into a field and replace its text with the keyboard."""
        self.click_on(selector)
        self.value(f"document.querySelector({selector!r}).select()")
        self.call("Input.insertText", text=text)

    def pick(self, selector: str, value: str) -> None:
        """Choose an option of a `select`. Its menu is a window of the system, so there is nothing to click."""
        self.wait(f"document.querySelector({selector!r})")
        self.value(
            f"(() => {{ const one = document.querySelector({selector!r}); one.value = {value!r}; "
            "one.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def choose_file(self, selector: str, path: Path) -> None:
        """Pass a file to a field, as the dialog of the system does."""
        self.wait(f"document.querySelector({selector!r})")
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def save_into(self, folder: Path) -> None:
        """Let the page save files to a folder."""
        session, self._session = self._session, None  # a command for the browser, not for the page
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        self._session = session

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def prefer(self, scheme: str) -> None:
        """Set the colour scheme: "light" or "dark"."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def page(where: Path | str, fragment: str = "", *options: str) -> Iterator[Page]:
    """Open a file or an address in a new browser, which ends after the block. options: options of the browser."""
    name = program()
    assert name, "no browser"
    read_end, write_end = os.pipe()
    its_read, its_write = os.pipe()
    with tempfile.TemporaryDirectory() as profile:
        process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-c", _ON_3_AND_4, str(read_end), str(its_write)),
                *(name, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
                *(f"--user-data-dir={profile}", "--no-first-run", "--disable-dev-shm-usage"),
                *("--disable-background-networking", f"--window-size={WIDTH},{HEIGHT}"),
                *options,
            ],
            pass_fds=(read_end, its_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": profile, "XDG_CONFIG_HOME": profile, "XDG_CACHE_HOME": profile},
        )
        os.close(read_end)
        os.close(its_write)
        made = Page(write_end, its_read)
        try:
            made.open((where if isinstance(where, str) else where.as_uri()) + fragment)
            yield made
        finally:
            made._session = None
            try:
                made.call("Browser.close")
            except (OSError, AssertionError):
                pass
            os.close(write_end)
            os.close(its_read)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
