"""Headless Chromium through its DevTools protocol."""
import base64
import contextlib
import json
import subprocess
import tempfile
import time
import urllib.request

import websocket


class Page:
    """One tab."""

    def __init__(self, socket_url):
        self.socket = websocket.create_connection(socket_url, suppress_origin=True)
        self.count = 0
        self.problems = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def call(self, method, **params):
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.count:
                assert "error" not in message, message
                return message["result"]
            self.note(message)

    def note(self, message):
        """Errors of the page, and requests that leave it."""
        if message["method"] == "Runtime.exceptionThrown":
            self.problems.append(message["params"]["exceptionDetails"])
        if message["method"] == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.problems.append(message["params"]["entry"])
        if message["method"] == "Network.requestWillBeSent":
            url = message["params"]["request"]["url"]
            if not url.startswith((self.base, "data:")):
                self.problems.append(url)

    base = ""

    def open(self, url):
        self.base = url
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression, seconds=120):
        deadline = time.time() + seconds
        while not self.value(expression):
            assert time.time() < deadline, "never true: " + expression
            time.sleep(0.05)

    def type(self, text):
        self.value("document.getElementById('input').focus()")
        self.call("Input.insertText", text=text)

    def press(self, key, code=0, shift=False):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                      modifiers=8 if shift else 0,
                      **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}))

    def click(self, element):
        self.value(f"document.getElementById('{element}').click()")

    def shape(self, width, height, phone, dark):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=phone)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def shoot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def chromium():
    """A browser with one tab; ended at exit."""
    # Children of the browser may still write there when it has ended.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = subprocess.Popen(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
             "--user-data-dir=" + profile, "about:blank"], stderr=subprocess.PIPE, text=True)
        try:
            line = next(line for line in browser.stderr if "DevTools listening on" in line)
            address = line.split("ws://")[1].split("/")[0]
            with urllib.request.urlopen(f"http://{address}/json") as answer:
                tab = next(tab for tab in json.load(answer) if tab["type"] == "page")
            yield Page(tab["webSocketDebuggerUrl"])
        finally:
            browser.terminate()
            browser.wait()
