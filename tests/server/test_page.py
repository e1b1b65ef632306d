"""The page in a real browser: a chat with the real model, and its memory."""

import json
import threading
import time
from collections.abc import Iterator

import openai
import pytest
from browsing import (
    PHONE,
    keep_screenshot,
    launch_chromium,
    opened,
    serious_findings,
    served,
    shown_counts,
    wait_live,
    wait_until,
)
from playwright.sync_api import Browser, Page, Route, sync_playwright
from synthetic_memory import SyntheticMemory, synthetic_app

from conftest import Launch, Server

SYSTEM = "You are a printer of the eighteenth century. " * 24
DONE = ".answer[aria-busy=false]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launch_chromium(playwright)
        yield browser
        browser.close()


def settings(**values: object) -> dict[str, str]:
    """What the browser remembers of earlier settings."""
    return {"octavo.settings": json.dumps({name: str(value) for name, value in values.items()})}


def ask(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def test_a_chat_is_answered(browser: Browser, server: Server, client: openai.OpenAI) -> None:
    messages: list[dict[str, str]] = [{"role": "user", "content": "Name a fruit.\nOnly one."}]
    wanted = client.chat.completions.create(
        model=server.model, messages=messages, temperature=0, max_tokens=20
    )
    with opened(browser, server.url) as page:
        wait_live(page)
        page.click("#open-settings")
        page.fill("[name=temperature]", "0")
        page.fill("[name=max_tokens]", "20")
        page.click("dialog .main")
        page.focus("#prompt")
        page.keyboard.type("Name a fruit.")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("Only one.")
        assert page.locator(".message").count() == 0
        page.keyboard.press("Enter")
        page.wait_for_selector(DONE)
        answer = page.inner_text(".answer .said")
        assert answer.split() == (wanted.choices[0].message.content or "").replace("**", "").split()
        foot = page.inner_text(".answer .foot")
        assert wanted.usage is not None
        assert f"{wanted.usage.completion_tokens} tokens" in foot
        assert "tokens/s" in foot
        assert "first after" in foot
        assert f"prompt {wanted.usage.prompt_tokens}, " in foot

        ask(page, "Another one.")
        page.wait_for_selector(f"li:nth-child(4){DONE}")
        told = page.inner_text("li:nth-child(4) .foot")
        cached = int(told.split("prompt")[1].split(",")[1].split()[0])
        assert cached > 0, f"the conversation was sent anew and nothing was found: {told}"
        keep_screenshot(page, "chat")
        page.locator("text=Show its blocks").last.click()
        page.wait_for_selector("#detail .prefix")
        assert "finished" in page.inner_text("#detail .facts")
        assert f"{cached} of " in page.inner_text("#detail .prefix")
        assert serious_findings(page) == []

        page.click("#new-chat")
        assert page.locator(".message").count() == 0


def test_stop_ends_the_request(browser: Browser, server: Server) -> None:
    with opened(browser, server.url, storage=settings(max_tokens=4000, temperature=0)) as page:
        ask(page, "Count from one to five thousand, one number a line, and leave none out.")
        wait_until(page, "document.querySelector('.answer .said')?.textContent.length > 8")
        page.click("#stop")
        page.wait_for_selector(DONE)
        foot = page.inner_text(".answer .foot")
        assert "stopped by you" in foot
        assert "tokens/s" not in foot  # the usage, which comes last, never came
        assert page.is_visible("#send")
        server.wait_until_idle()


def test_what_the_server_refuses_is_told(browser: Browser, server: Server) -> None:
    refused = ("status of 400",)
    with opened(browser, server.url, storage=settings(min_p=7), expected_errors=refused) as page:
        ask(page, "Hello")
        page.wait_for_selector(".answer .error")
        assert "min_p" in page.inner_text(".answer .error")
        keep_screenshot(page, "refused")


def test_the_key_is_asked_for_and_kept_in_the_tab(browser: Browser, launch_server: Launch) -> None:
    server = launch_server("--api-key", "open-sesame")
    storage = settings(max_tokens=4)
    with opened(browser, server.url, storage=storage, expected_errors=("status of 401",)) as page:
        page.wait_for_selector("#feed[data-status=lost]")
        assert "API key" in page.inner_text("#feed")
        page.click("#open-settings")
        page.fill("[name=api_key]", "open-sesame")
        page.click("dialog .main")
        wait_live(page)
        assert page.inner_text("#model-name") == server.model
        ask(page, "Hello")
        page.wait_for_selector(DONE)
        assert "open-sesame" not in page.evaluate("JSON.stringify(localStorage)")
        assert "open-sesame" in page.evaluate("JSON.stringify(sessionStorage)")
    server.stop()


def test_two_requests_that_share_blocks(browser: Browser, server: Server) -> None:
    stop = threading.Event()

    def stream(question: str) -> None:
        with server.openai() as client:
            answer = client.chat.completions.create(
                model=server.model,
                messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
                max_tokens=1500,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            for _ in answer:
                if stop.is_set():
                    answer.close()
                    return

    with opened(browser, server.url) as page:
        wait_live(page)
        threads = [threading.Thread(target=stream, args=(q,)) for q in ("Who are you?", "What is a quire?")]
        for thread in threads:
            thread.start()
        try:
            wait_until(page, "document.querySelector('[data-state=shared]').dataset.count > 0")
            wait_until(page, "document.querySelectorAll('[data-request]').length === 2")
            first, second = page.eval_on_selector_all(
                "[data-request]", "all => all.map(b => b.dataset.request)"
            )
            page.click(f"[data-request='{first}']")
            page.wait_for_selector(f"#detail [data-sharer='{second}']")
            page.wait_for_selector("#detail .table .shared")
            assert page.get_attribute(f"[data-request='{first}']", "aria-pressed") == "true"
            assert "tokens cached" in page.inner_text("#detail .prefix")
            keep_screenshot(page, "shared")
            assert serious_findings(page) == []
            page.click(f"[data-sharer='{second}']")
            page.wait_for_selector(f"#detail [data-sharer='{first}']")
            before = time.time()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        # Now they are gone; the slider still shows them.
        wait_until(page, "document.querySelector('[data-state=shared]').dataset.count === '0'")
        at = page.evaluate("Number(document.getElementById('map').dataset.time)") - before + 0.5
        slide(page, f"slider.max - {at}")
        assert shown_counts(page)["shared"] > 0
        page.click("#live")
        wait_until(page, "document.querySelector('[data-state=shared]').dataset.count === '0'")
        # The end of the pool, never used, is folded away until asked for.
        page.click("#detail button")
        page.click("#fold")
        wait_until(page, "document.getElementById('fold').textContent.startsWith('Show only')")
        codes = page.evaluate(PIXELS)
        assert [codes.count(code) for code in range(6)] == list(shown_counts(page).values())


def slide(page: Page, value: str) -> None:
    page.evaluate(
        f"{{const slider = document.getElementById('moment'); slider.value = {value};"
        "slider.dispatchEvent(new Event('input'))}"
    )
    page.wait_for_selector("#memory[data-moment=past]")


def test_any_moment_can_be_shown_again(browser: Browser) -> None:
    memory = SyntheticMemory(3000)
    with served(synthetic_app(memory, frames=0)) as url, opened(browser, url) as page:
        wait_live(page)
        end, newest = memory.past_counts[-1]
        wait_until(page, f"Math.abs(document.getElementById('map').dataset.time - {end}) < 0.01")
        assert list(shown_counts(page).values()) == newest
        for k in (0, 1, 59, 60, 61, 123, 400, 598, 7):
            t, counts = memory.past_counts[k]
            slide(page, str(k / 2))
            wait_until(page, f"Math.abs(document.getElementById('map').dataset.time - {t}) < 0.01")
            assert list(shown_counts(page).values()) == counts, k
        assert "ago" in (page.get_attribute("#moment", "aria-valuetext") or "")
        keep_screenshot(page, "past")
        page.click("#live")
        page.wait_for_selector("#memory[data-moment=live]")
        assert list(shown_counts(page).values()) == newest


def test_a_block_is_read_aloud(browser: Browser) -> None:
    memory = SyntheticMemory(500)
    with served(synthetic_app(memory, frames=0)) as url, opened(browser, url) as page:
        wait_live(page)
        page.focus("#grid")
        for key in ("Home", "ArrowRight", "ArrowRight"):
            page.keyboard.press(key)
        wait_until(page, "document.getElementById('readout').textContent.includes('folded three times')")
        told = page.inner_text("#readout")
        assert told.startswith("Block 3, ")
        assert f"references {memory.refs[3]}" in told
        page.keyboard.press("ArrowDown")
        wait_until(page, "!document.getElementById('readout').textContent.startsWith('Block 3,')")
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


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_twenty_thousand_blocks(browser: Browser, motion: str) -> None:
    memory = SyntheticMemory(20_000)
    app = synthetic_app(memory, period_s=1 / 60, changes=2000, frames=120)
    with served(app) as url, opened(browser, url, motion=motion) as page:
        wait_live(page)
        while True:  # the last frame has come
            last = memory.t
            page.wait_for_timeout(500)
            if memory.t == last:
                break
        wait_until(page, f"Math.abs(document.getElementById('map').dataset.time - {memory.t}) < 1e-3")
        page.wait_for_timeout(600)  # colours fade for a third of a second
        assert page.evaluate(PIXELS) == memory.states[1:].tolist()


def test_a_lost_feed_comes_back(browser: Browser) -> None:
    memory = SyntheticMemory(400)
    app = synthetic_app(memory, frames=0, ends=True)
    with served(app) as url, opened(browser, url, motion="no-preference") as page:
        wait_until(page, "document.getElementById('map').dataset.time !== undefined")
        while memory.connections < 3:
            page.wait_for_timeout(50)
        wait_until(page, f"Math.abs(document.getElementById('map').dataset.time - {memory.t}) < 0.01")
        assert list(shown_counts(page).values()) == memory.counts()
        assert float(page.get_attribute("#moment", "max") or 0) < 301  # the past was not added twice


HISTORY = """async () => {
  const {History} = await import("/web/history.js");
  const frame = (t, total, ids) => ({
    t, total, full: ids === null, ids: ids && Int32Array.from(ids), ages: ids ? null : new Float32Array(total),
    states: new Uint8Array(ids ? ids.length : total).fill(1), owners: new Int32Array(ids ? ids.length : total),
    refs: new Uint16Array(ids ? ids.length : total), requests: [], stats: {}, steps: [],
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
        shown = page.get_attribute("#map", "data-time")
        page.wait_for_timeout(1200)  # two more frames would have come
        assert page.get_attribute("#map", "data-time") == shown
        page.evaluate(hide, False)
        wait_until(page, f"document.getElementById('map').dataset.time > {shown}")
        assert memory.connections == 2


def test_a_phone_needs_no_sideways_scrolling(browser: Browser) -> None:
    app = synthetic_app(SyntheticMemory(3000))
    with served(app) as url, opened(browser, url, viewport=PHONE) as page:
        wait_live(page)
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
    app = synthetic_app(SyntheticMemory(20_000))
    with served(app) as url, opened(browser, url, scheme=scheme) as page:
        wait_live(page)
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


def scripted(*deltas: dict[str, str], error: str | None = None) -> str:
    events = [{"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    lines = [json.dumps(event) for event in events]
    lines.append(json.dumps({"error": {"message": error}}) if error else "[DONE]")
    return "".join(f"data: {line}\n\n" for line in lines)


def test_what_a_model_writes_is_text_and_thoughts_are_folded(browser: Browser) -> None:
    markup = "<img src=x onerror=alert(1)> **bold** `<b>`\n\n```\n<script>alert(2)</script>\n```"
    body = scripted({"reasoning_content": "Let me see."}, {"content": markup[:30]}, {"content": markup[30:]})

    def answer(route: Route) -> None:
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    with served(synthetic_app(SyntheticMemory(100))) as url, opened(browser, url) as page:
        page.route("**/v1/chat/completions", answer)
        ask(page, "<i>hello</i>")
        page.wait_for_selector(DONE)
        assert page.inner_text(".user .text") == "<i>hello</i>"
        assert page.inner_text(".answer pre") == "<script>alert(2)</script>"
        assert page.inner_text(".answer strong") == "bold"
        assert page.locator(".messages img, .messages script, .messages b, .messages i").count() == 0
        assert page.get_attribute(".reasoning", "open") is None
        assert not page.is_visible(".reasoning .text")
        page.click(".reasoning summary")
        assert page.inner_text(".reasoning .text") == "Let me see."


def test_an_error_in_mid_stream_keeps_what_was_said(browser: Browser) -> None:
    body = scripted({"content": "Half an"}, error="the engine has stopped")
    with served(synthetic_app(SyntheticMemory(100))) as url, opened(browser, url) as page:
        page.route(
            "**/v1/chat/completions",
            lambda route: route.fulfill(status=200, content_type="text/event-stream", body=body),
        )
        ask(page, "Hello")
        page.wait_for_selector(".answer .error")
        assert page.inner_text(".answer .error") == "the engine has stopped"
        assert page.inner_text(".answer .said") == "Half an"
