"""What completions and chats have in common: how tokens are chosen."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from octavo.core.errors import InvalidRequest, shown
from octavo.core.sampling import SamplingParams

StopTexts = str | list[str] | None

# Fields that mean the same here and in SamplingParams.
_SAME: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "n",
    "use_beam_search",
    "length_penalty",
    "early_stopping",
)

MAX_STOP_TEXTS: Final = 64
MAX_STOP_CHARS: Final = 4096
MAX_NAME_CHARS: Final = 256
MAX_TOKEN_IDS: Final = 65_536  # in a parameter, not in a prompt
MAX_FIELDS: Final = 256

Name = Annotated[str, Field(max_length=MAX_NAME_CHARS)]
TokenIds = Annotated[list[int], Field(max_length=MAX_TOKEN_IDS)]

# What beams make nothing of, and the values that ask for nothing.
_NOT_WITH_BEAMS: Final[dict[str, tuple[float, ...]]] = {
    "temperature": (0, 1),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "typical_p": (1,),
    "seed": (),
}


class Strict(BaseModel):
    """An object of the API: unknown names and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _check_size(cls, values: Any) -> Any:
        if isinstance(values, dict) and len(values) > MAX_FIELDS:
            raise InvalidRequest(f"{len(values)} parameters, at most {MAX_FIELDS}")
        return values


class StreamOptions(Strict):
    """What a stream tells beside the text.

    ``include_obfuscation`` may be given as false; padding against guessing from packet sizes is not done.
    """

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class JsonSchemaFormat(Strict):
    """A JSON schema with a name."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """The form of the output: plain text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    def structured_outputs(self) -> dict[str, Any] | None:
        """The fields of a StructuredOutput, or None."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return {"json_object": True}
        if self.json_schema is None or self.json_schema.schema_ is None:
            raise InvalidRequest("response_format.json_schema.schema: is required", param="response_format")
        return {"json_schema": self.json_schema.schema_}


class StructuredOutputs(Strict):
    """The language of the output: exactly one of these."""

    json_schema: dict[str, Any] | str | bool | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class SamplingFields(Strict):
    """Parameters of both endpoints. None is the same as leaving one out."""

    model: Name | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: StopTexts = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=MAX_TOKEN_IDS)] | None = None
    user: Name | None = None
    response_format: ResponseFormat | None = None

    # Beyond OpenAI's API
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    bad_words: list[str | list[int]] | None = None
    allowed_token_ids: TokenIds | None = None
    prompt_logprobs: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    structured_outputs: StructuredOutputs | None = None
    cache_salt: Name | None = None
    priority: int | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options: only with stream=true", param="stream_options")
        texts = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(texts) > MAX_STOP_TEXTS:
            raise InvalidRequest(f"stop: {len(texts)} texts, at most {MAX_STOP_TEXTS}", param="stop")
        if (longest := max(map(len, texts), default=0)) > MAX_STOP_CHARS:
            raise InvalidRequest(
                f"stop: a text of {longest} characters, at most {MAX_STOP_CHARS}", param="stop"
            )
        self._check_beams()
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequest("prompt_logprobs: not with stream=true", param="prompt_logprobs")
        return self

    def _check_beams(self) -> None:
        if self.use_beam_search:
            for name, neutral in _NOT_WITH_BEAMS.items():
                value = getattr(self, name)
                if value is not None and value not in neutral:
                    raise InvalidRequest(f"{name}={shown(value)}: not with use_beam_search", param=name)
            return
        for name in ("length_penalty", "early_stopping"):
            if getattr(self, name) is not None:
                raise InvalidRequest(f"{name}: only with use_beam_search", param=name)

    @property
    def tells_usage(self) -> bool:
        """Whether a stream ends with the token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def sampling_params(self, **others: Any) -> SamplingParams:
        """The engine's parameters; ``others`` are those that the endpoints name differently.

        Raises:
            InvalidRequest: a value out of range; names it and its limits.
        """
        given = {name: getattr(self, name) for name in _SAME if getattr(self, name) is not None}
        if self.seed is not None:
            given["seed"] = self.seed % 2**64 if -(2**63) <= self.seed < 0 else self.seed
        if self.prompt_logprobs is not None:
            given["prompt_logprobs"] = self.prompt_logprobs
        if (structured := self._structured()) is not None:
            given["structured_outputs"] = structured
        return SamplingParams(**(given | others))

    def _structured(self) -> dict[str, Any] | None:
        from_format = self.response_format.structured_outputs() if self.response_format else None
        if self.structured_outputs is None:
            return from_format
        if from_format is not None:
            raise InvalidRequest(
                "structured_outputs: not together with response_format", param="structured_outputs"
            )
        return self.structured_outputs.model_dump(exclude_none=True)


def refuse_unsupported(values: Any, unsupported: dict[str, tuple[tuple[Any, ...], str]]) -> Any:
    """Refuse documented parameters that are not done here, unless their value asks for nothing.

    Args:
        values: a body as it came.
        unsupported: per name the values that ask for nothing, beside None, and the reason.

    Raises:
        InvalidRequest: names the parameter and the reason.
    """
    if not isinstance(values, dict):
        return values
    values = dict(values)
    for name, (neutral, reason) in unsupported.items():
        if name in values:
            value = values.pop(name)
            if value is not None and not any(value == one and type(value) is type(one) for one in neutral):
                raise InvalidRequest(f"{name}={shown(value)}: {reason}", param=name)
    return values
