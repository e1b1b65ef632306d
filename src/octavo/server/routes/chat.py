"""``POST /v1/chat/completions``: conversations answered, with tools, thoughts and forms of output."""

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.core.request import RequestOutput, TokenLogprobs
from octavo.server.answering.chat_format import ChatPrompt
from octavo.server.answering.generating import Caller, ClientLeft, Running, check_model, unless_left
from octavo.server.answering.logprobs import chat_logprobs, entries_of, prompt_logprobs
from octavo.server.answering.streaming import EventStream
from octavo.server.answering.usage import usage
from octavo.server.errors import json_response
from octavo.server.middleware import CLIENT_LEFT
from octavo.server.parsing.events import (
    ContentDelta,
    Event,
    OutputParser,
    ParsedOutput,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegin,
    parse,
)
from octavo.server.schema.chat import ChatCompletionRequest
from octavo.server.state import ServerState, state_of

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat(body: ChatCompletionRequest, request: Request) -> Response:
    """Answer a conversation."""
    state = state_of(request)
    check_model(state, body.model)
    asked = await state.chat_format.ask(body)
    answer = _Answer(state, body, asked, Running(state))
    running = answer.running
    caller = Caller(answer.response_id, "chat", body.end_user, request.headers)
    await running.start(
        [asked.token_ids], asked.params, caller, cache_salt=body.cache_salt or "", priority=body.priority or 0
    )
    if body.stream:
        return EventStream(answer.chunks(), running.close)
    try:
        (output,) = await unless_left(request, running.results())
    except ClientLeft:
        return Response(status_code=CLIENT_LEFT)
    finally:
        running.close()
    return json_response(answer.whole(output))


class _Answer:
    """What is told of the choices of one conversation."""

    def __init__(
        self, state: ServerState, body: ChatCompletionRequest, asked: ChatPrompt, running: Running
    ) -> None:
        self.response_id = f"chatcmpl-{secrets.token_hex(12)}"
        self.running = running
        self._tokenizer = state.llm.tokenizer
        self._body = body
        self._asked = asked
        self._head = {
            "id": self.response_id,
            "created": int(time.time()),
            "model": state.settings.model_name,
            "system_fingerprint": state.fingerprint,
        }

    def whole(self, output: RequestOutput) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = []
        for one in output.outputs:
            said = parse(self._asked.make_parser(), one.text)
            reason = _finish_reason(one.finish_reason, has_calls=bool(said.tool_calls))
            choices.append(
                {
                    "index": one.index,
                    "message": _message(said),
                    "logprobs": self._logprobs(entries_of(one.logprobs)),
                    "finish_reason": reason,
                }
            )
        told = {**self._head, "object": "chat.completion", "choices": choices}
        if self._body.prompt_logprobs is not None:
            told["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        return {**told, "usage": self._usage(self.running.num_output_tokens())}

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a stream: the role, then pieces, then why it ended."""
        head = {**self._head, "object": "chat.completion.chunk"}
        if self._body.tells_usage:
            head["usage"] = None
        streams = [_ChoiceStream(self._asked.make_parser()) for _ in range(self._body.n or 1)]
        num_tokens = 0
        for index in range(len(streams)):
            yield {**head, "choices": [_chunk(index, {"role": "assistant", "content": ""}, None, None)]}
        async for _, delta in self.running.deltas():
            num_tokens += len(delta.token_ids)
            stream = streams[delta.index]
            events = stream.parser.push(delta.text)
            if delta.finish_reason is not None:
                events += stream.parser.finish()
            stream.logprobs += delta.logprobs
            pieces = [_piece(event) for event in events]
            stream.has_calls |= any("tool_calls" in piece for piece in pieces)
            for piece in pieces:
                logprobs, stream.logprobs = self._logprobs(stream.logprobs), []
                yield {**head, "choices": [_chunk(delta.index, piece, logprobs, None)]}
            if delta.finish_reason is not None:
                reason = _finish_reason(delta.finish_reason, has_calls=stream.has_calls)
                logprobs = self._logprobs(stream.logprobs) if stream.logprobs else None
                yield {**head, "choices": [_chunk(delta.index, {}, logprobs, reason)]}
        if self._body.tells_usage:
            yield {**head, "choices": [], "usage": self._usage(num_tokens)}

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        return chat_logprobs(self._tokenizer, entries, self._body.top_logprobs or 0)

    def _usage(self, num_tokens: int) -> dict[str, Any]:
        running = self.running
        return usage(running.num_prompt_tokens(), num_tokens, running.num_cached_tokens())


class _ChoiceStream:
    """One choice on its way: what it means so far, and log-probabilities that were not told yet."""

    def __init__(self, parser: OutputParser) -> None:
        self.parser = parser
        self.logprobs: list[TokenLogprobs] = []
        self.has_calls = False


def _chunk(
    index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None, finish_reason: str | None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _piece(event: Event) -> dict[str, Any]:
    """An event as the ``delta`` of a chunk."""
    match event:
        case ContentDelta(text):
            return {"content": text}
        case ReasoningDelta(text):
            return {"reasoning_content": text}
        case ToolCallBegin(index, call_id, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": call_id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case ToolCallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _message(said: ParsedOutput) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said.content, "refusal": None}
    if said.reasoning:
        message["reasoning_content"] = said.reasoning
    if said.tool_calls:
        message["content"] = said.content or None
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in said.tool_calls
        ]
    return message


def _finish_reason(reason: str, *, has_calls: bool) -> str:
    return "tool_calls" if has_calls and reason == "stop" else reason
