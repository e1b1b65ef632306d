"""A headless browser for tests of the page, and the page over a made-up memory."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from fastapi import FastAPI
from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright
from playwright.sync_api import Error as BrowserError

ARTIFACTS = Path(__file__).parents[2] / "build" / "test-artifacts" / "page"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
DESKTOP = {"width": 1440, "height": 900}
PHONE = {"width": 360, "height": 740}
DONE = ".answer[aria-busy=false]"

MOMENT = "document.getElementById('map').dataset.time"  # that is shown
# The blocks in each state: as the legend says, and of each block as its cell is painted.
COUNTS = "[...document.querySelectorAll('#legend .count')].map(node => Number(node.dataset.count))"
PIXELS = """() => {
  const canvas = document.getElementById("grid");
  const swatches = [...document.querySelectorAll("#legend .swatch")];
  const colours = swatches.map(s => getComputedStyle(s).backgroundColor.match(/\\d+/g).slice(0, 3).join());
  const total = Number(canvas.getAttribute("aria-label").match(/[\\d,]+/)[0].replace(",", ""));
  const {data, width, height} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (let cell = 1; cell < 200; cell += 1) {  // the size that gives this many rows
    const columns = width / cell;
    if (width % cell || height !== Math.ceil(total / columns) * cell) continue;
    return Array.from({length: total}, (_, i) => {
      const x = (i % columns) * cell + (cell >> 2), y = Math.floor(i / columns) * cell + (cell >> 2);
      const at = 4 * (y * width + x);
      return colours.indexOf(data.slice(at, at + 3).join());
    });
  }
}"""


def launch_chromium(playwright: Playwright) -> Browser:
    """The system's, else Playwright's own."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    try:
        return playwright.chromium.launch(executable_path=found, args=OPTIONS)
    except BrowserError as error:
        if found is None:
            pytest.fail(f"no Chromium; scripts/install_chromium.sh says how to get it ({error.message[:80]})")
        raise


@contextmanager
def opened(
    browser: Browser,
    url: str,
    *,
    viewport: dict[str, int] = DESKTOP,
    scheme: str = "light",
    motion: str = "reduce",
    expected_errors: tuple[str, ...] = (),
    storage: dict[str, str] | None = None,
) -> Iterator[Page]:
    """The page in a browser context of its own. Leaving fails if the console was told of an error.

    ``expected_errors`` are parts of lines that the browser itself writes, as for a status of 400.
    """
    context = browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion=motion)
    context.set_default_timeout(60_000)
    for name, value in (storage or {}).items():
        context.add_init_script(
            f"localStorage.getItem({name!r}) ?? localStorage.setItem({name!r}, {value!r})"
        )
    page = context.new_page()
    faults: list[str] = []

    def told(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(e in message.text for e in expected_errors):
            faults.append(message.text)

    page.on("console", told)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(url)
    try:
        yield page
        assert faults == []
    finally:
        context.close()


def keep_screenshot(page: Page, name: str) -> None:
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(ARTIFACTS / f"{name}.png"))


def wait_until(page: Page, condition: str) -> Any:
    """Until a JavaScript expression holds; its value then.

    The browser's own waiting needs ``eval``, which is forbidden.
    """
    end = time.monotonic() + 60
    while not (found := page.evaluate(condition)):
        assert time.monotonic() < end, f"never came true: {condition[:500]}"
        page.wait_for_timeout(30)
    return found


def wait_live(page: Page) -> None:
    """Until the feed is there and drawn."""
    page.wait_for_selector("#feed[data-status=live]", state="attached")
    wait_until(page, f"{MOMENT} !== undefined")


def shown_counts(page: Page) -> dict[str, int]:
    script = "nodes => nodes.map(node => [node.dataset.state, Number(node.dataset.count)])"
    return dict(page.eval_on_selector_all("#legend .count", script))


def counts_at(page: Page, moment: float) -> list[int]:
    """The blocks in each state, once this moment is shown: read with it, as another may be shown soon."""
    is_shown = f"Math.abs({MOMENT} - {moment}) < 0.001"
    return wait_until(page, f"{is_shown} && {COUNTS}")


def serious_findings(page: Page) -> list[dict[str, Any]]:
    """What axe finds, as far as it is serious or critical."""
    found = Axe().run(page).response["violations"]
    return [
        {"rule": rule["id"], "at": [node["target"] for node in rule["nodes"]]}
        for rule in found
        if rule["impact"] in ("serious", "critical")
    ]


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The address of an application, served by a thread of its own for as long as this lasts."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(30)


def ask(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def slide(page: Page, value: str) -> None:
    page.evaluate(
        f"{{const slider = document.getElementById('moment'); slider.value = {value};"
        "slider.dispatchEvent(new Event('input'))}"
    )
    page.wait_for_selector("#memory[data-moment=past]")
