"""docs/serving.md names every endpoint and every parameter."""

import re
from pathlib import Path

from octavo.server.schema import chat, completions
from octavo.server.schema.chat import ChatCompletionRequest
from octavo.server.schema.completions import CompletionRequest

TEXT = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([a-z_]+)`", TEXT))


def test_every_parameter_is_named():
    for body in (CompletionRequest, ChatCompletionRequest):
        assert set(body.model_fields) <= NAMED
    for refused in (completions._UNSUPPORTED, chat._UNSUPPORTED):
        assert set(refused) <= NAMED


def test_every_route_is_named():
    from octavo.server.routes import chat, completions, health, memory, metrics, models, page

    for room in (chat, completions, health, memory, metrics, models, page):
        for route in room.router.routes:
            path = re.sub(r"\{[a-z_:]+\}", "{id}", route.path).removesuffix("/{id}")
            assert path.startswith(("/web", "/favicon")) or path in TEXT, path
