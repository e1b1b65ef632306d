"""Conversations laid out by the model's chat template."""

import asyncio
from typing import Any, Final

from octavo.core.errors import InvalidRequest
from octavo.server.state import ServerState

# Shorter conversations are laid out in the event loop: a thread costs more.
_SHORT_CHARS: Final = 8192


async def render(
    state: ServerState,
    messages: list[dict[str, Any]],
    *,
    tools: list[dict[str, Any]] | None = None,
    documents: list[dict[str, Any]] | None = None,
    variables: dict[str, Any] | None = None,
    add_generation_prompt: bool = True,
) -> str:
    """The text that the model continues.

    Raises:
        InvalidRequest: the model has no template, or it refuses these messages.
    """
    template = state.llm.chat_template
    if template is None:
        raise InvalidRequest("this model has no chat template; use /v1/completions", param="messages")

    def work() -> str:
        return template.render(
            messages,
            tools=tools,
            documents=documents,
            variables=variables,
            add_generation_prompt=add_generation_prompt,
        )

    if sum(len(str(message.get("content", ""))) for message in messages) < _SHORT_CHARS and not tools:
        return work()
    return await asyncio.to_thread(work)
