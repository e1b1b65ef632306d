"""What clients were told they used is what the metrics say, to the token."""

from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from real_server import Launch


def scrape(http: httpx.Client) -> dict[str, float]:
    """Every sample without its labels, summed."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(http.get("/metrics").raise_for_status().text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def test_usage_and_metrics_agree(launch_server: Launch):
    server = launch_server("--kv-memory", "64MiB")
    prompt: dict[str, Any] = {
        "prompt": "The colours of the rainbow are",
        "max_tokens": 12,
        "temperature": 1.0,
    }
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
    asked = [
        ("/v1/completions", prompt),
        ("/v1/completions", {**prompt, "n": 3, "seed": 1}),
        ("/v1/completions", {**prompt, "n": 1, "best_of": 4}),
        ("/v1/completions", {**prompt, "use_beam_search": True, "n": 2}),
        ("/v1/completions", {**prompt, "prompt": ["One", "Two", "Three"], "stop": ["e", "a"]}),
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", {**chat, "n": 2}),
    ]
    with server.http() as http:
        before = scrape(http)
        assert before["octavo:generation_tokens_total"] == before["octavo:prompt_tokens_total"] == 0
        used = [http.post(path, json=body).raise_for_status().json()["usage"] for path, body in asked]
        assert http.post("/v1/completions", json={**prompt, "temperature": -1}).status_code == 400
        server.wait_until_idle()  # an answer may be there before its last step has been counted
        after = scrape(http)
    assert after["octavo:prompt_tokens_total"] == sum(u["prompt_tokens"] for u in used)
    assert after["octavo:generation_tokens_total"] == sum(u["completion_tokens"] for u in used)
    assert after["octavo:e2e_request_latency_seconds_count"] == len(asked) + 2  # three prompts in one of them
    assert after["octavo:num_requests_running"] == after["octavo:num_requests_waiting"] == 0
    server.stop()
