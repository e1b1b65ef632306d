"""The body of ``POST /v1/chat/completions``."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from octavo.core.errors import InvalidRequest
from octavo.core.sampling import SamplingParams
from octavo.server.schema.sampling import Name, SamplingFields, refuse_unsupported

MAX_MESSAGES: Final = 4096

_TEXT_ONLY: Final = "only text is taken and made"
_STATELESS: Final = "nothing is stored here"

# Documented parameters that are not done here: values that ask for nothing, and why others are refused.
_UNSUPPORTED: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "audio": ((), _TEXT_ONLY),
    "modalities": ((["text"],), _TEXT_ONLY),
    "prediction": ((), "predicted outputs are not supported; serve with --speculative ngram"),
    "web_search_options": ((), "there is no web search"),
    "store": ((False,), _STATELESS),
    "metadata": (({},), _STATELESS),
    "moderation": ((), "there is no moderation"),
    "service_tier": (("auto", "default"), "there is one tier"),
    "functions": ((), "deprecated; use tools"),
    "function_call": ((), "deprecated; use tool_choice"),
    "prompt_cache_retention": ((), "blocks stay cached until their memory is needed"),
    "prompt_cache_options": ((), "every prompt is looked up by its content; there is nothing to set"),
}


class ChatCompletionRequest(SamplingFields):
    """Answer a conversation.

    ``prompt_cache_key`` is taken and asks for nothing: prompts are looked up by their content.
    """

    messages: Annotated[list[dict[str, Any]], Field(max_length=MAX_MESSAGES)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None

    # Beyond OpenAI's API
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = Field(
        default=None, description="Variables for the model's chat template, such as enable_thinking."
    )
    documents: list[dict[str, Any]] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, values: Any) -> Any:
        return refuse_unsupported(values, _UNSUPPORTED)

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs: only with logprobs=true", param="top_logprobs")
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise InvalidRequest(
                f"max_completion_tokens={self.max_completion_tokens}: max_tokens={self.max_tokens} says "
                "otherwise; give one of them",
                param="max_completion_tokens",
            )
        return self

    @property
    def end_user(self) -> str | None:
        """Who it is for, as the client names them."""
        return self.safety_identifier or self.user

    def params(self, **others: Any) -> SamplingParams:
        """The engine's parameters."""
        max_tokens = self.max_completion_tokens if self.max_tokens is None else self.max_tokens
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self.sampling_params(max_tokens=max_tokens, logprobs=logprobs, **others)
