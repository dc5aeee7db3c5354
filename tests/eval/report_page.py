"""The report of `quatrain compare` in headless Chromium. Run by scripts/test-page."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from chromium import chromium  # noqa: E402


def main():
    report, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    with chromium() as page:
        page.shape(1100, 800, phone=False, dark=False)
        page.open(report.as_uri())
        light = page.value("getComputedStyle(document.body).backgroundColor")
        for dark in (False, True):
            for name, width, height in (("desktop", 1100, 800), ("phone", 390, 780)):
                page.shape(width, height, phone=name == "phone", dark=dark)
                wide = page.value("document.documentElement.scrollWidth > innerWidth")
                assert not wide, f"the page is wider than a {name}"
                plots = page.value("[...document.querySelectorAll('svg')].map(svg => svg.getBoundingClientRect().width)")
                assert plots and all(200 < size <= width for size in plots), plots
                page.shoot(folder / f"report-{name}-{'dark' if dark else 'light'}.png")
                page.value("document.querySelector('svg').scrollIntoView()")
                page.shoot(folder / f"report-{name}-{'dark' if dark else 'light'}-plots.png")
                page.value("scrollTo(0, 0)")
        assert page.value("getComputedStyle(document.body).backgroundColor") != light, "dark looks like light"
        assert page.value("document.querySelectorAll('circle').length") > 0
        assert page.value("document.querySelectorAll('script').length") == 0
        assert not page.problems, page.problems
    print("test-page: ok; screenshots in", folder)


main()
