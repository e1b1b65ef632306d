"""The bodies of ``POST /tokenize`` and ``POST /detokenize``."""

from typing import Any, Self

from pydantic import model_validator

from octavo.core.errors import InvalidRequest
from octavo.server.schema.sampling import Strict


class TokenizeRequest(Strict):
    """A text, or messages to be laid out by the chat template first."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool = True
    messages: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("give either prompt or messages", param="prompt")
        return self


class DetokenizeRequest(Strict):
    """Token ids."""

    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool = False
