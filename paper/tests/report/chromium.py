"""Drives a headless Chromium over its DevTools protocol."""

import base64
import json
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

EXECUTABLE = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


class Page:
    """One page; `errors` collects reported errors and `urls` the requests."""

    def __init__(self, socket):
        self._socket = socket
        self._number = 0
        self.errors = []
        self.urls = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv())
            self._collect(answer)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _collect(self, event):
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(parameters["exceptionDetails"]["text"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            self.errors.append(str(parameters["args"]))
        elif method == "Network.requestWillBeSent":
            self.urls.append(parameters["request"]["url"])

    def open(self, path, *, width=1200, scheme="light"):
        """Opens a file and waits until it and its images are loaded."""
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=phone,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        deadline = time.monotonic() + 30
        while not self.run(
            "document.readyState === 'complete' && location.protocol === 'file:' && "
            "Array.from(document.images).every((image) => image.complete)"
        ):
            assert time.monotonic() < deadline, "the page does not load within 30 s"
            time.sleep(0.05)

    def run(self, script):
        """Returns the value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key, code):
        """Presses and releases one key."""
        text = {"text": "\r"} if key == "Enter" else {}
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path):
        """Writes the whole page to a PNG file."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(answer["data"]))


@contextmanager
def browser(profile):
    """Starts Chromium with an empty profile and yields its one page."""
    import websocket

    process = subprocess.Popen(
        [
            EXECUTABLE,
            "--headless=new",
            "--no-sandbox",  # root in a container cannot use it
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--remote-debugging-port=0",
            "--remote-allow-origins=*",
            f"--user-data-dir={profile}",
            "about:blank",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        port = _port(process)
        with _page_socket(websocket, port) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        process.wait(timeout=20)
        process.stderr.close()


def _port(process):
    for line in process.stderr:
        found = re.search(r"DevTools listening on ws://[^:]+:(\d+)/", line)
        if found:
            return int(found.group(1))
    raise RuntimeError("Chromium ended before it printed its DevTools port")


@contextmanager
def _page_socket(websocket, port):
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{port}/json", timeout=20) as answer:
        [page] = [each for each in json.load(answer) if each["type"] == "page"]
    socket = websocket.create_connection(page["webSocketDebuggerUrl"], timeout=60)
    try:
        yield socket
    finally:
        socket.close()
