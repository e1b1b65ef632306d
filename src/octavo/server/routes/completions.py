"""``POST /v1/completions``: prompts continued."""

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.core.request import RequestOutput, TokenLogprobs
from octavo.server.answering.generating import (
    Caller,
    ClientLeft,
    Running,
    check_model,
    check_num_prompts,
    unless_left,
)
from octavo.server.answering.logprobs import CompletionLogprobs, entries_of, prompt_logprobs
from octavo.server.answering.streaming import EventStream
from octavo.server.answering.usage import usage
from octavo.server.errors import json_response
from octavo.server.middleware import CLIENT_LEFT
from octavo.server.schema.completions import CompletionRequest
from octavo.server.state import ServerState, state_of

router = APIRouter()


@router.post("/v1/completions")
async def complete(body: CompletionRequest, request: Request) -> Response:
    """Continue one or several prompts."""
    state = state_of(request)
    check_model(state, body.model)
    prompts = body.prompts
    check_num_prompts(state, len(prompts))
    params = body.params()
    answer = _Answer(state, body, Running(state))
    caller = Caller(answer.response_id, "completions", body.user, request.headers)
    running = answer.running
    await running.start(
        prompts, params, caller, cache_salt=body.cache_salt or "", priority=body.priority or 0
    )
    if body.stream:
        return EventStream(answer.chunks(), running.close)
    try:
        outputs = await unless_left(request, running.results())
    except ClientLeft:
        return Response(status_code=CLIENT_LEFT)
    finally:
        running.close()
    return json_response(answer.whole(outputs))


class _Answer:
    """What is told of the generations of one request."""

    def __init__(self, state: ServerState, body: CompletionRequest, running: Running) -> None:
        self.response_id = f"cmpl-{secrets.token_hex(12)}"
        self.running = running
        self._tokenizer = state.llm.tokenizer
        self._body = body
        self._per_prompt = body.n or 1
        self._head = {
            "id": self.response_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": state.settings.model_name,
            "system_fingerprint": state.fingerprint,
        }
        self._logprobs: dict[int, CompletionLogprobs] = {}

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices: list[dict[str, Any]] = []
        for index, output in enumerate(outputs):
            for one in output.outputs:
                text, token_ids, entries = one.text, one.token_ids, entries_of(one.logprobs)
                reason: str | None = one.finish_reason
                if not self._body.generates:
                    text, token_ids, entries, reason = "", [], [], "length"
                number = index * self._per_prompt + one.index
                choice = self._choice(number, text, token_ids, entries, reason, echo_of=index)
                if self._body.prompt_logprobs is not None:
                    choice["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
                choices.append(choice)
        num_tokens = self.running.num_output_tokens() if self._body.generates else 0
        return {**self._head, "choices": choices, "usage": self._usage(num_tokens)}

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a stream."""
        usage_field: dict[str, Any] = {"usage": None} if self._body.tells_usage else {}
        num_tokens = 0
        started: set[int] = set()
        async for index, delta in self.running.deltas():
            number = index * self._per_prompt + delta.index
            text, token_ids, entries = delta.text, delta.token_ids, delta.logprobs
            reason = delta.finish_reason
            if not self._body.generates:
                text, token_ids, entries = "", [], []
                reason = "length" if reason else None
            num_tokens += len(token_ids)
            echo_of = None if number in started else index
            started.add(number)
            choice = self._choice(number, text, token_ids, entries, reason, echo_of=echo_of)
            yield {**self._head, "choices": [choice], **usage_field}
        if self._body.tells_usage:
            yield {**self._head, "choices": [], "usage": self._usage(num_tokens)}

    def _choice(
        self,
        number: int,
        text: str,
        token_ids: Sequence[int],
        entries: Sequence[TokenLogprobs],
        finish_reason: str | None,
        *,
        echo_of: int | None,
    ) -> dict[str, Any]:
        """One choice, whole or a piece of it; ``echo_of`` is the prompt that an echo begins with."""
        count = self._body.logprobs
        told: list[TokenLogprobs | None] = list(entries)
        if self._body.echo and echo_of is not None:
            prompt_ids = self.running.prompt_token_ids(echo_of)
            text = self._tokenizer.decode(prompt_ids) + text
            if count is not None:
                token_ids = [*prompt_ids, *token_ids]
                told = [None, *self.running.prompt_logprobs(echo_of), *told]
        logprobs = None
        if count is not None:
            if number not in self._logprobs:
                self._logprobs[number] = CompletionLogprobs(self._tokenizer, count)
            logprobs = self._logprobs[number].take(token_ids, told)
        return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    def _usage(self, num_tokens: int) -> dict[str, Any]:
        running = self.running
        return usage(running.num_prompt_tokens(), num_tokens, running.num_cached_tokens())
