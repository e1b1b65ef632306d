"""The bodies of ``POST /tokenize`` and ``POST /detokenize``."""

from typing import Annotated, Any, Final, Self

from pydantic import Field, model_validator

from octavo.core.errors import InvalidRequest
from octavo.server.schema.chat import MAX_MESSAGES
from octavo.server.schema.sampling import Name, Strict

MAX_DETOKENIZED: Final = 262_144


class TokenizeRequest(Strict):
    """A text, or messages to be laid out by the chat template first."""

    model: Name | None = None
    prompt: str | None = None
    add_special_tokens: bool = True
    messages: Annotated[list[dict[str, Any]], Field(max_length=MAX_MESSAGES)] | None = None
    add_generation_prompt: bool = True
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("give either prompt or messages", param="prompt")
        given = {"tools": self.tools, "chat_template_kwargs": self.chat_template_kwargs}
        for name, value in given.items():
            if self.messages is None and value is not None:
                raise InvalidRequest(f"{name}: only with messages", param=name)
        return self


class DetokenizeRequest(Strict):
    """Token ids."""

    model: Name | None = None
    tokens: Annotated[list[int], Field(max_length=MAX_DETOKENIZED)]
    skip_special_tokens: bool = False
