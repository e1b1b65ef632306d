"""A chat request as the engine and the parsers need it: tokens, parameters, how the answer is to be read."""

from collections.abc import Callable
from dataclasses import dataclass

from octavo.core.sampling import SamplingParams
from octavo.server.parsing.events import OutputParser, PlainParser
from octavo.server.schema.chat import ChatCompletionRequest
from octavo.server.state import ServerState
from octavo.server.templating import render


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """What to run, and how to read what comes of it.

    Attributes:
        make_parser: a new parser for each choice.
    """

    token_ids: list[int]
    params: SamplingParams
    make_parser: Callable[[], OutputParser]


async def ask(state: ServerState, body: ChatCompletionRequest) -> ChatPrompt:
    """Lay out a conversation.

    Raises:
        InvalidRequest: the messages, the tools or a parameter cannot be served; names it.
    """
    params = body.params()
    text = await render(
        state,
        body.messages,
        tools=body.tools,
        documents=body.documents,
        variables=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
    )
    return ChatPrompt(state.llm.tokenizer.encode(text), params, PlainParser)
