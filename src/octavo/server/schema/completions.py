"""The body of ``POST /v1/completions``."""

from typing import Any, Final, Self

from pydantic import model_validator

from octavo.core.errors import InvalidRequest
from octavo.core.sampling import SamplingParams
from octavo.server.schema.sampling import SamplingFields, refuse_unsupported

DEFAULT_MAX_TOKENS: Final = 16

_UNSUPPORTED: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "suffix": ((), "text in the middle is not supported"),
}


class CompletionRequest(SamplingFields):
    """Continue prompts: texts, or lists of token ids."""

    prompt: str | list[int] | list[str] | list[list[int]]
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, values: Any) -> Any:
        return refuse_unsupported(values, _UNSUPPORTED)

    @model_validator(mode="after")
    def _check_completion(self) -> Self:
        if self.stream and self.best_of is not None and self.best_of > (self.n or 1):
            raise InvalidRequest(
                "best_of: which are best is known in the end; not with stream=true", param="best_of"
            )
        return self

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """One or several."""
        prompt: Any = self.prompt
        if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
            return [prompt]
        if not prompt:
            raise InvalidRequest("prompt: is empty", param="prompt")
        return list(prompt)

    @property
    def generates(self) -> bool:
        """Whether new tokens are wanted, and not only the prompt's log-probabilities."""
        return not (self.echo and self.max_tokens == 0)

    def params(self) -> SamplingParams:
        """The engine's parameters."""
        # The engine makes at least one token; where none is wanted it is not told.
        max_tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        others: dict[str, Any] = {
            "max_tokens": max_tokens if self.generates else 1,
            "logprobs": self.logprobs,
            "best_of": self.best_of,
        }
        if self.echo and self.logprobs is not None:
            others["prompt_logprobs"] = max(self.logprobs, self.prompt_logprobs or 0)
        return self.sampling_params(**others)
