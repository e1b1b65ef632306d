"""The page in a real browser, on the real model: a chat, and who shares which blocks."""

import json
import threading

import openai
from browsing import (
    COUNTS,
    DONE,
    MOMENT,
    PIXELS,
    ask,
    keep_screenshot,
    opened,
    serious_findings,
    served,
    shown_counts,
    slide,
    wait_live,
    wait_until,
)
from playwright.sync_api import Browser, Route
from real_server import Launch, Server
from synthetic_memory import SyntheticMemory, synthetic_app

SYSTEM = "You are a printer of the eighteenth century. " * 24


def settings(**values: object) -> dict[str, str]:
    """What the browser remembers of earlier settings."""
    return {"octavo.settings": json.dumps({name: str(value) for name, value in values.items()})}


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
    def without_end(route: Route) -> None:
        route.continue_(post_data=json.dumps({**route.request.post_data_json, "ignore_eos": True}))

    with opened(browser, server.url, storage=settings(max_tokens=4000)) as page:
        page.route("**/v1/chat/completions", without_end)
        ask(page, "Count from one to five thousand.")
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
        page.wait_for_selector(f"#model-name:text-is('{server.model}')")  # it is asked for beside the feed
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
                max_tokens=6000,  # both are at work until they are stopped, however long the page takes
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
            shared = "document.querySelector('[data-state=shared]').dataset.count > 0"
            seen = wait_until(page, f"{shared} && Number({MOMENT})")
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
            wait_until(page, f"{MOMENT} > {seen + 1.5}")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        # Now they are gone; the slider still shows them.
        wait_until(page, "document.querySelector('[data-state=shared]').dataset.count === '0'")
        slide(page, f"slider.max - ({MOMENT} - {seen + 0.75})")  # to within three quarters of a second
        assert shown_counts(page)["shared"] > 0
        page.click("#live")
        wait_until(page, "document.querySelector('[data-state=shared]').dataset.count === '0'")
        # The end of the pool, never used, is folded away until asked for; then the next frame shows it.
        page.click("#detail button")
        codes, counts = page.evaluate(f"""async () => {{
          document.getElementById("fold").click();
          await new Promise(requestAnimationFrame);
          return [({PIXELS})(), {COUNTS}];
        }}""")
        assert page.inner_text("#fold").startswith("Show only")
        assert [codes.count(code) for code in range(6)] == counts


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
