"""The chat page in headless Chromium. Run by scripts/test-page."""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from chromium import chromium  # noqa: E402

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

    # The arrow brings the last message back; Shift+Enter is a line, not the end.
    page.value("document.getElementById('input').focus()")
    page.press("ArrowUp", 38)
    assert "Thanks!" in page.value("document.getElementById('input').value")
    page.press("Enter", 13, shift=True)
    assert page.value("document.getElementById('input').value").endswith("\n") and page.value("messages.length") == 6
    page.value("document.getElementById('input').value = ''")

    # A new chat in the middle of a reply: nothing of the old one gets into it.
    page.value("fields.max_tokens.value = 4000; saveSettings()")
    page.type("Count to a thousand.")
    page.press("Enter", 13)
    page.wait(f"{REPLIES}.length === 4 && {REPLIES}[3].textContent.length > 10")
    page.click("new")
    page.wait(IDLE, 10)
    assert page.value("messages.length") == 0 and page.value("document.querySelectorAll('article').length") == 0
    page.value("fields.max_tokens.value = 20; saveSettings()")
    page.type("Hello.")
    page.press("Enter", 13)
    page.wait("messages.length === 2 && " + IDLE)
    assert page.value("messages.map(message => message.role).join()") == "user,assistant"


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
    with chromium() as page:
        page.open(url)
        talk(page, folder)
        look(page, folder)
        assert not page.problems, page.problems
    print("test-page: ok; screenshots in", folder)


main()
