"""``/v1/models``, ``/tokenize``, ``/detokenize``: what the model is, and its tokens."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.core.errors import InvalidRequest
from octavo.server.answering.chat_format import encode
from octavo.server.answering.generating import check_model
from octavo.server.errors import json_response
from octavo.server.parsing.tools import check_tools
from octavo.server.schema.tokens import DetokenizeRequest, TokenizeRequest
from octavo.server.state import ServerState, state_of

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """The one model that is served."""
    return json_response({"object": "list", "data": [_described(state_of(request))]})


@router.get("/v1/models/{model:path}")
async def model(model: str, request: Request) -> Response:
    """The one model, if that is its name."""
    state = state_of(request)
    check_model(state, model)
    return json_response(_described(state))


def _described(state: ServerState) -> dict[str, Any]:
    return {
        "id": state.settings.model_name,
        "object": "model",
        "created": state.created,
        "owned_by": "octavo",
        "root": state.settings.model_name,
        "max_model_len": state.llm.capacity.context_len,
        "precision": state.precision,
    }


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """A text or a conversation as token ids."""
    state = state_of(request)
    check_model(state, body.model)
    tokenizer = state.llm.tokenizer
    if body.prompt is not None:
        token_ids = await encode(state.llm, body.prompt, param="prompt", add_bos=body.add_special_tokens)
    else:
        text = await state.chat_format.lay_out(
            body.messages or [],
            tools=check_tools(body.tools),
            variables=body.chat_template_kwargs,
            add_generation_prompt=body.add_generation_prompt,
        )
        token_ids = await encode(state.llm, text, param="messages")
    found: dict[str, Any] = {
        "count": len(token_ids),
        "max_model_len": state.llm.capacity.context_len,
        "tokens": token_ids,
    }
    if body.return_token_strs:
        found["token_strs"] = [tokenizer.token_bytes(t).decode(errors="replace") for t in token_ids]
    return json_response(found)


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """Token ids as a text."""
    state = state_of(request)
    check_model(state, body.model)
    tokenizer = state.llm.tokenizer
    for token_id in body.tokens:
        if not 0 <= token_id < tokenizer.vocab_size:
            raise InvalidRequest(
                f"tokens: token id {token_id} is outside the vocabulary, 0 to {tokenizer.vocab_size - 1}",
                param="tokens",
            )
    text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special=body.skip_special_tokens)
    return json_response({"prompt": text})
