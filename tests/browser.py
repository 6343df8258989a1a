"""Headless Chromium driven over its own protocol: real clicks, emulated phones, console lines."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


class Page:
    """One tab. console: what the page wrote there, and errors that nothing caught."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._next = 0
        self.console: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the protocol, answered."""
        self._next += 1
        self._socket.send(json.dumps({"id": self._next, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == self._next:
                assert "error" not in message, message
                return dict(message["result"])
            if message.get("method") in (
                "Runtime.consoleAPICalled",
                "Runtime.exceptionThrown",
                "Log.entryAdded",
            ):
                self.console.append(_line(message["params"]))

    def open(self, url: str, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a page, as on a screen of this size in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.console.clear()
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")
        self.until("!!document.querySelector('main section .chart svg')")

    def js(self, expression: str) -> Any:
        """The value of an expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)  # fmt: skip
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str, seconds: float = 60) -> None:
        """Wait for the expression to be true."""
        deadline = time.monotonic() + seconds
        while not self.js(expression):
            assert not any("Error" in line for line in self.console), self.console
            assert time.monotonic() < deadline, f"never true: {expression}\n{self.console}"
            time.sleep(0.05)

    def click(self, selector: str, nth: int = 0) -> None:
        """A press of the mouse on the middle of an element, which must be what lies there."""
        place = self.js(
            f"""(() => {{ const e = document.querySelectorAll({json.dumps(selector)})[{nth}];
            e.scrollIntoView({{block: "center", behavior: "instant"}}); const r = e.getBoundingClientRect();
            const [x, y] = [r.left + r.width / 2, r.top + r.height / 2];
            return e.contains(document.elementFromPoint(x, y)) ? [x, y] : null; }})()"""
        )
        assert place, f"{selector} [{nth}] is covered"
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1],
                      button="left", clickCount=1)  # fmt: skip

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name)

    def text(self, selector: str) -> str:
        return str(self.js(f"document.querySelector({json.dumps(selector)}).textContent"))

    def picture(self, out: Path, whole: bool = True) -> None:
        """A PNG of the page, all of its height unless `whole` is False."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        more = {"clip": clip, "captureBeyondViewport": True} if whole else {}
        answer = self.call("Page.captureScreenshot", format="png", **more)
        out.write_bytes(base64.b64decode(answer["data"]))


def _line(event: dict[str, Any]) -> str:
    """What a console event says."""
    if "exceptionDetails" in event:
        return str(event["exceptionDetails"].get("exception", {}).get("description", event))
    if "entry" in event:
        return str(event["entry"]["text"])
    return " ".join(str(item.get("value", item.get("description"))) for item in event["args"])


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A started browser with one tab; ended afterwards."""
    assert BROWSER is not None
    process = subprocess.Popen(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "about:blank",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port = _port(profile / "DevToolsActivePort", process)
        with connect(f"ws://127.0.0.1:{port[0]}{port[1]}", max_size=None) as top:
            top.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
            targets = json.loads(top.recv(timeout=60))["result"]["targetInfos"]
        tab = next(t["targetId"] for t in targets if t["type"] == "page")
        url = f"ws://127.0.0.1:{port[0]}/devtools/page/{tab}"
        with connect(url, max_size=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        process.wait(30)


def _port(file: Path, process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """What the browser writes once it listens: its port and the path of its socket."""
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text().count("\n") >= 1):
        assert process.poll() is None, "the browser has ended"
        assert time.monotonic() < deadline, "the browser does not listen"
        time.sleep(0.05)
    port, path = file.read_text().splitlines()[:2]
    return port, path
