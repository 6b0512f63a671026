"""A real headless Chromium, told what to do over a pipe (the DevTools protocol)."""

import itertools
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support import PATIENCE_S

needs_chromium = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="Chromium is not installed (apt-get install chromium)"
)
_PROTOCOL = "https://chromedevtools.github.io/devtools-protocol"


class Tab:
    """One page of the browser, with all that it was told meanwhile."""

    def __init__(self, to: Any, answers: Any) -> None:
        self._to, self._from, self._ids, self._session = to, answers, itertools.count(1), {}
        self.events: list[dict] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        number = next(self._ids)
        said = {"id": number, "method": method, "params": params, **self._session}
        self._to.write(json.dumps(said).encode() + b"\0")
        self._to.flush()
        while (answer := self._next()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']['message']} ({_PROTOCOL})"
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        text = bytearray()
        while (each := self._from.read(1)) != b"\0":
            assert each, "Chromium ended"
            text += each
        return json.loads(text)

    def open(self, page: Path | str) -> None:
        """Show a page, a file or an address, and wait until it is loaded."""
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while (event := self._next()).get("method") != "Page.loadEventFired":
            self.events.append(event)

    def run(self, script: str) -> Any:
        """Return what a script in the page evaluates to; it keeps the page's own policy."""
        how = {"returnByValue": True, "awaitPromise": True, "allowUnsafeEvalBlockedByCSP": False}
        done = self.call("Runtime.evaluate", expression=script, **how)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def of_kind(self, *methods: str) -> list[dict]:
        """Return what the browser told of these kinds."""
        return [event["params"] for event in self.events if event.get("method") in methods]

    def press(self, key: str) -> None:
        """Press a key and let it go."""
        code = {"ArrowRight": 39, "ArrowLeft": 37, "Tab": 9, " ": 32, "Enter": 13}[key]
        for kind in ("keyDown", "keyUp"):
            texts = {" ": " ", "Enter": "\r"}
            words = {"text": texts[key]} if key in texts and kind == "keyDown" else {}
            parts = {"key": key, "code": "Space" if key == " " else key, **words}
            self.call("Input.dispatchKeyEvent", type=kind, windowsVirtualKeyCode=code, **parts)


@contextmanager
def browser(folder: Path) -> Iterator[Tab]:
    """Start Chromium with a profile of its own and open a page in it; end it afterwards."""
    read_end, to_browser = os.pipe()
    from_browser, write_end = os.pipe()
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    command = ["chromium", *words, f"--user-data-dir={folder}", "about:blank"]
    # Chromium reads from descriptor 3 and writes to 4.
    placed = ["bash", "-c", f'exec "$@" 3<&{read_end} 4>&{write_end}', "bash", *command]
    process = subprocess.Popen(placed, pass_fds=(read_end, write_end), stderr=subprocess.DEVNULL)
    os.close(read_end)
    os.close(write_end)
    stop = threading.Timer(6 * PATIENCE_S, process.kill)  # a browser that hangs ends its tests
    stop.daemon = True
    stop.start()
    with os.fdopen(to_browser, "wb") as to, os.fdopen(from_browser, "rb") as answers:
        tab = Tab(to, answers)
        try:
            yield tab
        finally:
            tab._session = {}
            tab.call("Browser.close")
            process.wait(60)
            stop.cancel()
