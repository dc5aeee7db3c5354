"""The chat page in headless Chromium, through its DevTools protocol. Run by scripts/test-page."""
import base64
import json
import pathlib
import subprocess
import sys
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

    def press(self, key, code=0):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
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


IDLE = "document.getElementById('send').textContent === 'Send'"
REPLIES = "document.querySelectorAll('article.assistant .body')"


def talk(page, folder):
    page.shape(1100, 800, phone=False, dark=False)
    page.wait("document.getElementById('model').textContent !== ''")
    assert page.value("document.activeElement.id") == "input"
    page.value("fields.temperature.value = 0; fields.max_tokens.value = 60; saveSettings()")

    page.type("Write one sentence about the sea, and a line of Python in a code block.")
    page.press("Enter", 13)
    page.wait("document.getElementById('send').textContent === 'Stop'")
    page.wait("document.getElementById('status').textContent.includes('tokens/s')")
    page.wait(IDLE)
    assert len(page.value(f"{REPLIES}[0].textContent")) > 20
    assert "tokens/s" in page.value("document.querySelector('.foot').textContent")
    page.shoot(folder / "desktop-light.png")

    # A long reply, stopped with the keyboard; the server ends it too.
    page.value("fields.max_tokens.value = 4000; fields.repetition_penalty.value = 1.2; saveSettings()")
    page.type("Tell me a very long story.")
    page.press("Enter", 13)
    page.wait(f"{REPLIES}.length === 2 && {REPLIES}[1].textContent.length > 40")
    page.press("Escape", 27)
    page.wait(IDLE, 10)
    page.wait("fetch('metrics').then(r => r.text()).then(t => /quatrain_requests_running 0/.test(t))", 20)

    # The conversation goes on; markup in a message stays text.
    page.value("fields.max_tokens.value = 20; saveSettings()")
    page.type("<img src=x onerror=alert(1)> **Thanks!**")
    page.click("send")
    page.wait(f"{REPLIES}.length === 3 && " + IDLE)
    assert page.value("document.querySelectorAll('#messages img').length") == 0
    assert page.value("messages.length") == 6
    assert page.value("document.querySelectorAll('.again').length") == 1
    page.value("document.querySelector('.again').click()")
    page.wait("messages.length === 6 && " + IDLE)


def look(page, folder):
    page.click("open-settings")
    page.wait("document.querySelectorAll('#facts dd').length > 5")
    page.shape(1100, 800, phone=False, dark=True)
    page.shoot(folder / "desktop-dark-settings.png")
    page.shape(390, 780, phone=True, dark=True)
    page.shoot(folder / "phone-dark-settings.png")
    page.press("Escape", 27)
    assert page.value("document.getElementById('settings').hidden")
    page.shoot(folder / "phone-dark.png")
    page.value("fields.theme.value = 'light'; saveSettings()")
    page.shoot(folder / "phone-light.png")
    box = page.value("JSON.stringify(['chat', 'composer'].map(id => document.getElementById(id).getBoundingClientRect()))")
    chat, composer = json.loads(box)
    assert chat["width"] == 390 and composer["width"] > 350 and composer["top"] >= chat["bottom"], box
    wide = page.value("document.documentElement.scrollWidth > innerWidth")
    assert not wide, "the page is wider than a phone"
    page.open(page.base)  # settings are remembered
    page.wait("document.getElementById('model').textContent !== ''")
    assert page.value("document.documentElement.dataset.theme") == "light"


def main():
    url, folder = sys.argv[1].rstrip("/") + "/", pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as profile:
        browser = subprocess.Popen(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
             "--user-data-dir=" + profile, "about:blank"], stderr=subprocess.PIPE, text=True)
        try:
            line = next(line for line in browser.stderr if "DevTools listening on" in line)
            address = line.split("ws://")[1].split("/")[0]
            with urllib.request.urlopen(f"http://{address}/json") as answer:
                tab = next(tab for tab in json.load(answer) if tab["type"] == "page")
            page = Page(tab["webSocketDebuggerUrl"])
            page.open(url)
            talk(page, folder)
            look(page, folder)
            assert not page.problems, page.problems
        finally:
            browser.terminate()
            browser.wait()
    print("test-page: ok; screenshots in", folder)


main()
