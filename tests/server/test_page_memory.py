"""The page in a real browser: the memory view on made-up memories of any size, and the page as a whole."""

import pytest
from browsing import (
    MOMENT,
    PHONE,
    PIXELS,
    counts_at,
    keep_screenshot,
    opened,
    serious_findings,
    served,
    slide,
    wait_live,
    wait_until,
)
from playwright.sync_api import Browser
from synthetic_memory import SyntheticMemory, synthetic_app


def test_any_moment_can_be_shown_again(browser: Browser) -> None:
    memory = SyntheticMemory(3000)
    with served(synthetic_app(memory, frames=0)) as url, opened(browser, url) as page:
        end, newest = memory.past_counts[-1]
        assert counts_at(page, end) == newest
        for k in (0, 1, 59, 60, 61, 123, 400, 598, 7):
            t, counts = memory.past_counts[k]
            slide(page, str(k / 2))
            assert counts_at(page, t) == counts, k
        assert "ago" in (page.get_attribute("#moment", "aria-valuetext") or "")
        keep_screenshot(page, "past")
        page.click("#live")
        page.wait_for_selector("#memory[data-moment=live]")
        assert counts_at(page, end) == newest


READOUT = "document.getElementById('readout').textContent"


def test_a_block_is_read_aloud(browser: Browser) -> None:
    memory = SyntheticMemory(500)
    with served(synthetic_app(memory, frames=0)) as url, opened(browser, url) as page:
        wait_live(page)
        page.focus("#grid")
        for key in ("Home", "ArrowRight", "ArrowRight"):
            page.keyboard.press(key)
        # Whoever presses keys slowly hears of the blocks in between too.
        wait_until(page, f"{READOUT}.startsWith('Block 3, ') && {READOUT}.includes('folded three times')")
        told = page.inner_text("#readout")
        assert f"references {memory.refs[3]}" in told
        page.keyboard.press("ArrowDown")
        wait_until(page, f"!{READOUT}.startsWith('Block 3,')")
        below = int(page.inner_text("#readout").split()[1].rstrip(","))
        box = page.locator("#grid").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 1, box["y"] + 1)  # the pointer takes over
        wait_until(page, "document.getElementById('tooltip').textContent.startsWith('Block 1,')")
        assert below > 3
        held = int((memory.refs > 0).argmax())
        page.focus("#prompt")
        page.focus("#grid")
        page.keyboard.press("Home")
        for _ in range(held - 1):
            page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        page.wait_for_selector("#detail:not([hidden])")
        page.keyboard.press("Escape")
        page.wait_for_selector("#detail", state="hidden")


# Colours fade for a third of a second, by the clock of the frames, of which a busy machine draws few.
PIXELS_AT_REST = f"""async () => {{
  const frame = () => new Promise(requestAnimationFrame);
  const begin = await frame();
  while (await frame() < begin + 500);
  await frame();
  return ({PIXELS})();
}}"""


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_twenty_thousand_blocks(browser: Browser, motion: str) -> None:
    memory = SyntheticMemory(20_000)
    app = synthetic_app(memory, period_s=1 / 60, changes=2000, frames=120)
    with served(app) as url, opened(browser, url, motion=motion) as page:
        while memory.num_live < 120:
            page.wait_for_timeout(50)
        assert counts_at(page, memory.t) == memory.counts()
        assert page.evaluate(PIXELS_AT_REST) == memory.states[1:].tolist()


def test_a_lost_feed_comes_back(browser: Browser) -> None:
    memory = SyntheticMemory(400)
    app = synthetic_app(memory, frames=0, ends=True)
    with served(app) as url, opened(browser, url, motion="no-preference") as page:
        while memory.connections < 3:
            page.wait_for_timeout(50)
        assert counts_at(page, memory.t) == memory.counts()
        assert float(page.get_attribute("#moment", "max") or 0) < 301  # the past was not added twice


HISTORY = """async () => {
  const {History} = await import("/web/history.js");
  const frame = (t, total, ids) => ({
    t, total, full: ids === null, ids: ids && Int32Array.from(ids),
    states: new Uint8Array(ids ? ids.length : total).fill(1),
    owners: new Int32Array(ids ? ids.length : total),
    refs: new Uint16Array(ids ? ids.length : total),
    ages: ids ? null : new Float32Array(total),
    requests: [], stats: {}, steps: [],
  });
  const times = history => [...history.frames()].map(frame => frame.t);
  const found = {};
  const history = new History();
  found.tooEarly = history.add(frame(1, 9, [1]));
  history.add(frame(2, 9, null));
  for (let t = 3; t < 200; t += 1) history.add(frame(t, 9, [1 + (t % 9)]));
  history.reconnect();
  found.beforeFull = history.add(frame(200, 9, [1]));
  history.add(frame(100, 9, null));
  history.add(frame(101, 9, [1]));
  found.replaced = times(history);
  history.add(frame(102, 10, null));
  found.otherPool = times(history);
  for (let t = 103; t < 2103; t += 1) history.add(frame(t, 10, [1]));
  found.span = history.end - history.start;
  const large = new History();
  const all = Array.from({length: 50000}, (_, i) => i + 1);
  large.add(frame(0, 50000, null));
  for (let t = 1; t < 300; t += 1) large.add(frame(t, 50000, all));
  found.bytes = large.bytes;
  return found;
}"""


def test_the_past_is_bounded_and_never_twice(browser: Browser) -> None:
    with served(synthetic_app(SyntheticMemory(100), frames=0)) as url, opened(browser, url) as page:
        found = page.evaluate(HISTORY)
    assert found["tooEarly"] is found["beforeFull"] is False
    assert found["replaced"] == list(range(2, 102))
    assert found["otherPool"] == [102]
    assert 600 <= found["span"] < 720  # at most one part, of 60 frames, too much
    assert 48 << 20 < found["bytes"] <= 64 << 20


def test_a_hidden_tab_rests(browser: Browser) -> None:
    hide = """hidden => {
        Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    memory = SyntheticMemory(400)
    with served(synthetic_app(memory)) as url, opened(browser, url) as page:
        wait_live(page)
        page.evaluate(hide, True)
        page.wait_for_selector("#feed[data-status=paused]")
        page.evaluate("new Promise(requestAnimationFrame)")  # what had come before is drawn
        shown = page.get_attribute("#map", "data-time")
        page.wait_for_timeout(1200)  # two more frames would have come
        assert page.get_attribute("#map", "data-time") == shown
        page.evaluate(hide, False)
        wait_until(page, f"{MOMENT} > {shown}")
        assert memory.connections == 2


def test_a_phone_needs_no_sideways_scrolling(browser: Browser) -> None:
    memory = SyntheticMemory(3000)
    app = synthetic_app(memory, frames=0)  # a request that ends has no blocks to show any more
    with served(app) as url, opened(browser, url, viewport=PHONE) as page:
        counts_at(page, memory.t)
        too_wide = "document.documentElement.scrollWidth > innerWidth"
        assert page.is_visible("#chat")
        assert not page.is_visible("#memory")
        assert not page.evaluate(too_wide)
        keep_screenshot(page, "phone-chat")
        page.click("[data-goto=memory]")
        assert page.is_visible("#grid")
        assert not page.is_visible("#chat")
        page.locator("[data-request]").first.click()
        page.wait_for_selector("#detail .table li")
        assert not page.evaluate(too_wide)
        assert page.evaluate("document.getElementById('memory').scrollWidth <= innerWidth")
        keep_screenshot(page, "phone-memory")
        assert serious_findings(page) == []
        page.click("#open-settings")
        assert not page.evaluate(too_wide)
        keep_screenshot(page, "phone-settings")
        assert serious_findings(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_finding_in(browser: Browser, scheme: str) -> None:
    memory = SyntheticMemory(20_000)
    app = synthetic_app(memory, frames=0)
    with served(app) as url, opened(browser, url, scheme=scheme) as page:
        counts_at(page, memory.t)
        keep_screenshot(page, f"busy-{scheme}")
        page.locator("[data-request]").first.click()
        page.wait_for_selector("#detail .table li")
        page.hover("#grid", position={"x": 90, "y": 40})
        page.wait_for_selector("#tooltip .content")
        keep_screenshot(page, f"selected-{scheme}")
        assert serious_findings(page) == []
        page.click("#open-settings")
        keep_screenshot(page, f"settings-{scheme}")
        assert serious_findings(page) == []


def test_the_theme_can_be_chosen(browser: Browser) -> None:
    app = synthetic_app(SyntheticMemory(100))
    with served(app) as url, opened(browser, url) as page:
        ground = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(ground)
        page.click("#theme")
        dark = page.evaluate(ground)
        assert dark != light
        page.reload()
        assert page.evaluate(ground) == dark
        assert page.get_attribute("#theme", "aria-pressed") == "true"
        page.click("#theme")
        assert page.evaluate(ground) == light
        assert page.evaluate("localStorage.getItem('octavo.theme')") is None


def test_the_keyboard_reaches_everything_and_is_not_caught(browser: Browser) -> None:
    app = synthetic_app(SyntheticMemory(300), frames=0)
    with served(app) as url, opened(browser, url) as page:
        wait_live(page)
        seen = []
        for _ in range(60):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
            if seen[-1] == "BODY":
                break
        assert seen[-1] == "BODY", seen
        assert {"theme", "open-settings", "prompt", "send", "grid", "moment", "live"} <= set(seen)
