"""``LLM``: a model, ready to generate. The offline interface."""

from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any, Final, cast

from octavo.core.config import (
    Activations,
    BackendName,
    BlockSizes,
    EngineConfig,
    KVDtype,
    Scheduling,
    Speculative,
)
from octavo.core.errors import (
    InvalidConfig,
    InvalidRequest,
    NotYetSupported,
    OctavoError,
    RequestFailed,
    shown,
)
from octavo.core.request import RequestOutput
from octavo.core.sampling import SamplingParams
from octavo.core.units import parse_bytes
from octavo.engine.build import BuiltEngine, build_engine
from octavo.engine.capacity import KVCapacity
from octavo.engine.engine import Engine
from octavo.engine.generation import Generation
from octavo.engine.grammar import GrammarCompiler
from octavo.engine.interrupts import deferred_interrupts
from octavo.engine.memory import MemoryReport
from octavo.engine.progress import progress_bar
from octavo.engine.prompts import Prompt, as_prompts, as_token_ids, naming_prompt, per_prompt
from octavo.models.spec import DecoderSpec
from octavo.paging.explain import PrefixExplanation
from octavo.scheduling.planning import MAX_EXPLAINED
from octavo.text.chat_template import ChatTemplate
from octavo.text.tokenizer import Tokenizer

Message = Mapping[str, Any]

MAX_PRIORITY: Final = 1_000_000

_PLANNED_OPTIONS: Final = frozenset(
    {
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "quantization",
        "speculative_config",
        "speculative_model",
        "num_speculative_tokens",
        "host_kv_memory",
        "disk_kv_path",
        "enable_lora",
    }
)


class TextStream(Iterator[str]):
    """The text of one request, piece by piece as it is certain. Closing or losing it early ends the request.

    Raises:
        OctavoError: while iterating, if the request fails; ``output`` then holds what there is.
    """

    def __init__(self, llm: "LLM", generation: Generation) -> None:
        self._llm = llm
        self._generation = generation
        self._reported = False

    def __next__(self) -> str:
        while True:
            finished = self._generation.finished  # asked first: all its text has come then
            if text := self._generation.take_text():
                return text
            if finished:
                if self._generation.request.error is not None and not self._reported:
                    self._reported = True
                    raise RequestFailed(self._generation.request.error)
                raise StopIteration
            self._llm._step()

    def close(self) -> None:
        """End the request if it is still running."""
        self._llm._abort(self._generation)

    def __del__(self) -> None:
        self._llm._drop(self._generation)

    def __enter__(self) -> "TextStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def request_id(self) -> int:
        """For ``LLM.explain`` and ``LLM.memory``."""
        return self._generation.request.request_id

    @property
    def output(self) -> RequestOutput:
        """The whole result, once the stream is exhausted or closed."""
        return self._generation.output()


class LLM:
    """A model with its paged KV cache, generating for many prompts at once.

    Args:
        model: a directory, a ``.gguf`` file, a Hugging Face repository id, or a short name like ``smollm2``.
        block_size: tokens per KV block, a multiple of 8 in 8..128; or one for each range of layers, like
            ``{"0-9": 64, "10-19": 16, "20-29": 8}``.
        kv_memory: size of the KV pool in bytes or as text such as "4GiB"; None takes a share of what is free.
        kv_dtype: "auto" (bfloat16), "bfloat16", "float16", "float32", or "int8", which holds nearly twice the
            tokens.
        activations: "auto" (int8 where the weights are quantized; bfloat16 where they are, on processors that
            multiply pairs of them), "int8" (only the former) or "float32".
        prefix_cache: reuse the KV of equal beginnings.
        max_num_seqs: sequences computed in one step at most; more wait their turn.
        max_step_tokens: tokens computed per step at most.
        max_chunk_tokens: what of these may go to prompts while others decode; None is all. The fewer, the
            shorter the gaps between tokens of those, and the later a prompt's first token.
        max_context: longest sequence in tokens; None is the model's own limit, or what the pool holds.
        scheduling: "fcfs" serves who comes first, "priority" who is most urgent.
        max_waiting: sequences that may wait, each of a request's n samples counted; a request that would make
            them more is refused, unless nobody waits.
        speculative: "ngram" guesses tokens from what was said before and verifies several per step: the same
            output, sooner where it repeats itself.
        max_drafts: tokens guessed at once at most.
        record: a file to write every decision of the scheduler to, for ``octavo replay``; it says which
            tokens are equal, not what they are.
        threads: native worker threads; None is the cores this process may use.
        backend: "cpu", or "oracle", a slow float64 reference.

    Full precision is ``activations="float32", kv_dtype="float32"``. Several threads may use an LLM; they
    take turns by steps, and each step advances the requests of all of them.

    Raises:
        InvalidConfig: an option out of range, or memory too small.
        NotYetSupported: a known option whose implementation has not arrived.
        TypeError: an unknown option.
        ModelNotFound, CorruptModel, UnsupportedModel: the model cannot be had or run.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        block_size: BlockSizes = 16,
        kv_memory: int | str | None = None,
        kv_dtype: KVDtype = "auto",
        activations: Activations = "auto",
        prefix_cache: bool = True,
        max_num_seqs: int = 64,
        max_step_tokens: int = 512,
        max_chunk_tokens: int | None = None,
        max_context: int | None = None,
        scheduling: Scheduling = "fcfs",
        max_waiting: int | None = None,
        speculative: Speculative | None = None,
        max_drafts: int = 8,
        record: str | Path | None = None,
        threads: int | None = None,
        backend: BackendName = "cpu",
        **options: Any,
    ) -> None:
        for name, value in options.items():
            if name not in _PLANNED_OPTIONS:
                raise TypeError(f"LLM() got an unexpected keyword argument {name!r}")
            raise NotYetSupported(f"{name}={shown(value)} is not supported yet; leave it out")
        try:
            kv_memory_bytes = None if kv_memory is None else parse_bytes(kv_memory)
        except ValueError as error:
            raise InvalidConfig(f"kv_memory={shown(kv_memory)}: {error}") from error
        if kv_memory_bytes == 0:
            raise InvalidConfig(f"kv_memory={kv_memory!r}: must be at least 1 byte, or None to choose")
        self.config = EngineConfig(
            block_size=block_size,
            kv_memory_bytes=kv_memory_bytes,
            kv_dtype=kv_dtype,
            activations=activations,
            prefix_cache=prefix_cache,
            max_num_seqs=max_num_seqs,
            max_step_tokens=max_step_tokens,
            max_chunk_tokens=max_chunk_tokens,
            max_context=max_context,
            scheduling=scheduling,
            max_waiting=max_waiting,
            speculative=speculative,
            max_drafts=max_drafts,
            record=None if record is None else str(record),
            threads=threads,
            backend=backend,
        )
        self._built: BuiltEngine | None = build_engine(str(model), self.config)

    # What is loaded

    @property
    def spec(self) -> DecoderSpec:
        """Sizes and switches of the model."""
        return self._parts.spec

    @property
    def path(self) -> Path:
        """The model's file, or its directory."""
        return self._parts.path

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, as the model's files hold them."""
        return self._parts.weight_bytes

    @property
    def weight_types(self) -> str:
        """Encodings that most of those bytes have, the largest first."""
        return self._parts.weight_types

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._parts.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        """What lays out conversations for the model, or None if it came with none."""
        return self._parts.chat_template

    @property
    def grammars(self) -> GrammarCompiler:
        """What turns structured outputs into grammars over the model's tokens."""
        return self._parts.grammars

    @property
    def capacity(self) -> KVCapacity:
        """The KV pool in numbers: blocks, tokens, bytes, longest sequence."""
        return self._parts.capacity

    @property
    def engine(self) -> Engine:
        """The engine underneath, for those who submit and step themselves."""
        return self._parts.engine

    def memory(self) -> MemoryReport:
        """What the KV pool is used for now: blocks by state and by request, waste, sharing, hits."""
        return self.engine.memory()

    def explain(self, request_id: int) -> PrefixExplanation:
        """Why a request's cached prefix ended where it did; also after it has finished.

        Raises:
            InvalidRequest: no such request has started, or it is too long ago.
        """
        explanation = self.engine.scheduler.explain(request_id)
        if explanation is None:
            raise InvalidRequest(
                f"request {request_id} has not started, or more than {MAX_EXPLAINED} came after it",
                param="request_id",
            )
        return explanation

    # Generating

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        cache_salt: str = "",
        priority: int = 0,
        progress: bool = True,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt; all of them run together.

        Args:
            prompts: a text, a list or NumPy array of token ids, or a list of those.
            sampling_params: one for all, or one per prompt; None is the default ``SamplingParams()``.
            cache_salt: requests of different salts share nothing of the KV cache.
            priority: lower is more urgent, with ``scheduling="priority"``.
            progress: show a progress bar, if standard error is a terminal.
            use_tqdm: another name for ``progress``.

        Returns:
            One output per prompt, in their order. A request that failed on the way has ``error`` set.

        Raises:
            InvalidRequest: some prompt or parameter can never be served; nothing has run then.
        """
        items = as_prompts(prompts)
        params = per_prompt(sampling_params, len(items))
        generations = []
        for position, (prompt, one) in enumerate(zip(items, params, strict=True)):
            with naming_prompt(position):
                generations.append(self.prepare(prompt, one, cache_salt=cache_salt, priority=priority))
        return self._run(generations, show_progress=progress if use_tqdm is None else use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        progress: bool = True,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several: ``generate`` on the model's chat template.

        Args:
            messages: ``[{"role": "user", "content": "..."}]``, or a list of such lists.
            add_generation_prompt: end the prompt where the assistant begins to speak.
            tools: descriptions of functions, for templates that know them.
        """
        if not isinstance(messages, (list, tuple)) or not messages:
            raise InvalidRequest("messages must be a list of messages, not empty", param="messages")
        many = not isinstance(messages[0], Mapping)
        conversations = cast(Sequence[Sequence[Message]], messages if many else [messages])
        prompts = []
        for position, conversation in enumerate(conversations):
            with naming_prompt(position):
                prompts.append(
                    self.encode_chat(conversation, add_generation_prompt=add_generation_prompt, tools=tools)
                )
        return self.generate(prompts, sampling_params, progress=progress, use_tqdm=use_tqdm)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        cache_salt: str = "",
        priority: int = 0,
    ) -> TextStream:
        """Continue one prompt and hand out the text as it comes.

        Raises:
            InvalidRequest: at once, not at the first piece.
        """
        generation = self.prepare(
            prompt, sampling_params or SamplingParams(), cache_salt=cache_salt, priority=priority
        )
        self.engine.submit(generation)
        return TextStream(self, generation)

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
    ) -> list[int]:
        """The token ids of a conversation, laid out by the model's chat template."""
        template = self._parts.chat_template
        if template is None:
            raise InvalidRequest("this model has no chat template; use generate()", param="messages")
        text = template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools)
        return self.tokenizer.encode(text)

    def close(self) -> None:
        """Let go of the model and the KV pool. Closing twice is fine."""
        if self._built is not None:
            self._built.engine.scheduler.close()
        self._built = None

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _parts(self) -> BuiltEngine:
        if self._built is None:
            raise OctavoError("this LLM is closed")
        return self._built

    def prepare(
        self, prompt: Prompt, params: SamplingParams, *, cache_salt: str = "", priority: int = 0
    ) -> Generation:
        """Check a request and make it ready for ``engine.submit``.

        Raises:
            InvalidRequest: it can never be served; names the value and the limit.
        """
        if not isinstance(cache_salt, str):
            raise InvalidRequest(f"cache_salt={shown(cache_salt)}: must be a text", param="cache_salt")
        urgency: Any = priority
        if not isinstance(urgency, Integral) or abs(int(urgency)) > MAX_PRIORITY:
            raise InvalidRequest(
                f"priority={shown(priority)}: must be an integer from -{MAX_PRIORITY} to {MAX_PRIORITY}",
                param="priority",
            )
        if not isinstance(params, SamplingParams):
            raise InvalidRequest(
                f"sampling_params must be SamplingParams, not {type(params).__name__}",
                param="sampling_params",
            )
        if not isinstance(prompt, str):
            ids = as_token_ids(prompt)
            return self.engine.prepare(ids, params, salt=cache_salt, priority=int(priority))
        if not prompt:
            raise InvalidRequest("the prompt is empty: give at least one character", param="prompt")
        return self.engine.prepare(
            self.tokenizer.encode(prompt), params, prompt=prompt, salt=cache_salt, priority=int(priority)
        )

    def _run(self, generations: list[Generation], *, show_progress: bool) -> list[RequestOutput]:
        try:
            for generation in generations:
                self.engine.submit(generation)
            with progress_bar(generations, show=show_progress) as update:
                for generation in generations:
                    while not generation.finished:
                        self._step()
                        update()
        finally:
            for generation in generations:
                self._abort(generation)
        self.engine.check_invariants()
        return [g.output() for g in generations]

    def _step(self) -> None:
        with deferred_interrupts():
            self.engine.step()

    def _abort(self, generation: Generation) -> None:
        if self._built is not None:
            self._built.engine.abort(generation)

    def _drop(self, generation: Generation) -> None:
        if self._built is not None:
            self._built.engine.drop(generation)
