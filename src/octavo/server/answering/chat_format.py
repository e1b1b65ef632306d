"""Conversations as the engine needs them: laid out, with tools, and how the answer is to be read."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from octavo.core.errors import InvalidRequest, shown
from octavo.core.sampling import SamplingParams
from octavo.core.structured import StructuredOutput
from octavo.engine.llm import LLM
from octavo.server.parsing.choosing import ParserChoice, choose_parsers, make_parser
from octavo.server.parsing.events import OutputParser
from octavo.server.parsing.reasoning import CLOSES, ends_inside
from octavo.server.parsing.templates import knows_tools, mentions
from octavo.server.parsing.tool_grammar import Thoughts, check_tool_schemas, tool_grammar
from octavo.server.parsing.tool_messages import messages_for_template
from octavo.server.parsing.tools import Tool, check_tool_choice, check_tools
from octavo.server.schema.chat import ChatCompletionRequest
from octavo.server.settings import ServerSettings

# What is laid out and encoded in the event loop: a thread would cost more.
_SHORT_CHARS: Final = 4096
MAX_CHARS_PER_TOKEN: Final = 32  # of the longest sequence; a text has four or so

# Names that a template is given anyway, by other fields.
_RESERVED: Final = ("messages", "tools", "documents", "add_generation_prompt")


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """What to run, and how to read what comes of it.

    Attributes:
        make_parser: gives a new parser for each choice.
    """

    token_ids: list[int]
    params: SamplingParams
    make_parser: Callable[[], OutputParser]


class ChatFormat:
    """How one model is talked to and how it answers: found out once, from its chat template."""

    def __init__(self, llm: LLM, settings: ServerSettings) -> None:
        self._llm = llm
        self._sources = llm.chat_template.sources if llm.chat_template else ()
        tokenizer = llm.tokenizer
        self.parsers: ParserChoice = choose_parsers(
            self._sources,
            special_tokens={
                tokenizer.token_bytes(t).decode(errors="replace") for t in tokenizer.special_token_ids
            },
            tool_parser=settings.tool_parser,
            reasoning_parser=settings.reasoning_parser,
        )

    async def ask(self, body: ChatCompletionRequest) -> ChatPrompt:
        """Lay out a conversation, and say what its answer must look like.

        Raises:
            InvalidRequest: the messages, the tools or a parameter cannot be served; names it.
        """
        tools = check_tools(body.tools)
        choice = check_tool_choice(body.tool_choice, tools)
        parallel = body.parallel_tool_calls is not False
        text = await self.lay_out(
            body.messages,
            tools=tools if choice.mode != "none" or self._knows_tools else (),
            documents=body.documents,
            variables=self._variables(body),
            add_generation_prompt=body.add_generation_prompt,
        )
        thoughts = self._thoughts(text)
        others: dict[str, Any] = {}
        grammar = tool_grammar(tools, choice, self.parsers.tools, parallel=parallel, thoughts=thoughts)
        if grammar is not None:
            if body.response_format is not None and body.response_format.type != "text":
                raise InvalidRequest(
                    "response_format: not together with tool calls that must have a form",
                    param="response_format",
                )
            others["structured_outputs"] = grammar
        if self.parsers.needs_special_tokens:
            others["skip_special_tokens"] = False
        params = body.params(**others)
        if grammar is not None and choice.mode != "none":
            await asyncio.to_thread(self._check_grammar, grammar, tools)

        def parser() -> OutputParser:
            return make_parser(self.parsers, tool_names=choice.names, begins_inside=thoughts == "inside")

        return ChatPrompt(await encode(self._llm, text, param="messages"), params, parser)

    async def lay_out(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: tuple[Tool, ...] = (),
        documents: list[dict[str, Any]] | None = None,
        variables: dict[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The text that the model continues.

        Raises:
            InvalidRequest: the model has no chat template, it refuses these messages, or does not look at
                something that is given.
        """
        template = self._llm.chat_template
        if template is None:
            raise InvalidRequest("this model has no chat template; use /v1/completions", param="messages")
        if tools and not self._knows_tools:
            raise InvalidRequest("tools: this model's chat template knows no tools", param="tools")
        for name in _RESERVED:
            if variables and name in variables:
                raise InvalidRequest(
                    f"chat_template_kwargs: {name} is a field of its own", param="chat_template_kwargs"
                )
        given = {"documents": documents, **(variables or {})}
        for name, value in given.items():
            if value is not None and not self._mentions(name):
                param = "documents" if name == "documents" else "chat_template_kwargs"
                raise InvalidRequest(
                    f"{name}={shown(value)}: this model's chat template does not look at it", param=param
                )

        def work() -> str:
            return template.render(
                messages_for_template(messages),
                tools=[tool.definition for tool in tools] or None,
                documents=documents,
                variables=variables,
                add_generation_prompt=add_generation_prompt,
            )

        if not tools and sum(len(str(message.get("content", ""))) for message in messages) < _SHORT_CHARS:
            return work()
        return await asyncio.to_thread(work)

    @property
    def _knows_tools(self) -> bool:
        return any(map(knows_tools, self._sources))

    def _mentions(self, name: str) -> bool:
        return any(mentions(source, name) for source in self._sources)

    def _variables(self, body: ChatCompletionRequest) -> dict[str, Any]:
        """What the template is given beside the messages; OpenAI's words for it in the template's own."""
        variables = dict(body.chat_template_kwargs or {})
        effort = body.reasoning_effort
        if effort is not None:
            if self._mentions("reasoning_effort"):
                variables.setdefault("reasoning_effort", effort)
            elif self._mentions("enable_thinking"):
                variables.setdefault("enable_thinking", effort != "none")
            elif effort != "none":
                raise InvalidRequest(
                    f"reasoning_effort={effort!r}: this model's chat template has nothing to set",
                    param="reasoning_effort",
                )
        if body.verbosity is not None:
            if not self._mentions("verbosity"):
                raise InvalidRequest(
                    f"verbosity={body.verbosity!r}: this model's chat template has nothing to set",
                    param="verbosity",
                )
            variables.setdefault("verbosity", body.verbosity)
        return variables

    def _thoughts(self, prompt: str) -> Thoughts:
        """Whether an output may begin with thoughts."""
        if not self.parsers.thinks or prompt.rstrip().endswith(
            CLOSES
        ):  # the template had none, for the model
            return "none"
        return "inside" if ends_inside(prompt) else "may"

    def _check_grammar(self, grammar: StructuredOutput, tools: tuple[Tool, ...]) -> None:
        try:
            self._llm.grammars.compile(grammar).result()
        except InvalidRequest:
            check_tool_schemas(tools, self._llm.grammars)  # one of them is to blame: say which
            raise


async def encode(llm: LLM, text: str, *, param: str, add_bos: bool = True) -> list[int]:
    """Token ids of a text from a client, without keeping the event loop from others.

    Raises:
        InvalidRequest: it is longer than any sequence of the model could be.
    """
    check_text_len(llm, text, param=param)
    if len(text) <= _SHORT_CHARS:
        return llm.tokenizer.encode(text, add_bos=add_bos)
    return await asyncio.to_thread(llm.tokenizer.encode, text, add_bos=add_bos)


def check_text_len(llm: LLM, text: str, *, param: str) -> None:
    """Refuse a text for its length before anybody spends time on it."""
    limit = MAX_CHARS_PER_TOKEN * llm.capacity.context_len
    if len(text) > limit:
        raise InvalidRequest(
            f"{param}: a text of {len(text)} characters, at most {limit} are looked at: a sequence has up to "
            f"{llm.capacity.context_len} tokens",
            param=param,
        )
