"""A real headless Chromium, driven through the DevTools protocol on two pipes: no driver and no package needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    *(
        "--headless",
        "--remote-debugging-pipe",
        "--no-first-run",
        "--hide-scrollbars",
        "--disable-gpu",
        "--disable-quic",
    ),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-sandbox"),
)
"""Of the pages that it opens all are our own; as root, and in most containers, there is no sandbox."""

MOST_S = 30
KEYS = {"Tab": 9, "Enter": 13, "ArrowLeft": 37}


def find_browser() -> str | None:
    """The one that CHROMIUM names, else one of the path."""
    return next((found for name in (os.environ.get("CHROMIUM", ""), *NAMES) if (found := shutil.which(name))), None)


class Tab:
    """One page. ``requests``: all that it has asked for; ``complaints``: of the console and of its policy."""

    _session: str | None = None

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._number, self._read = 0, b""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        answer = self._answer(method, params)
        assert "error" not in answer, answer
        return answer["result"]

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            pass
        return answer

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            some = os.read(self._from, 1 << 20)
            assert some, "the browser has ended"
            self._read += some
        text, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        params = message.get("params", {})
        if message.get("sessionId") != self._session:
            return message  # of another tab, which may be open still
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif message.get("method") == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        return message

    def window(self, width: int, *, dark: bool = False, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_for(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(url)})")

    def value(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Until it is true. The page itself looks again and again; if it is left, the next one is asked."""
        waiting = f"""new Promise((found) => {{
            const end = performance.now() + {MOST_S * 1_000};
            const look = () => ({script}) ? found(true) : performance.now() > end ? found(false) : setTimeout(look, 20);
            look();
        }})"""
        params = {"expression": waiting, "returnByValue": True, "awaitPromise": True}
        while "error" in (answer := self._answer("Runtime.evaluate", params)):
            assert "navigated" in answer["error"]["message"], answer
        assert answer["result"]["result"].get("value") is True, script

    def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "char", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "char" else {}
            if kind != "char" or text:
                code = KEYS[key]
                self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def opened_browser() -> Iterator[Callable[[], Tab]]:
    """Opens tabs, until it ends."""
    executable = find_browser()
    assert executable is not None
    command_read, command_write = os.pipe()
    answer_read, answer_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        shell = ["bash", "-c", f'exec "$@" 3<&{command_read} 4>&{answer_write}', "bash", executable]
        process = subprocess.Popen(
            [*shell, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(command_read, answer_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_read)
        os.close(answer_write)
        try:
            yield lambda: Tab(command_write, answer_read)
        finally:
            os.close(command_write)
            process.terminate()
            process.wait()
            os.close(answer_read)
