"""Log-probabilities of tokens, in the two forms that OpenAI's endpoints give them."""

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo.core.request import Logprob, RankedToken, TokenLogprobs
from octavo.text.tokenizer import Tokenizer


def entries_of(described: Sequence[Mapping[int, Logprob]] | None) -> list[TokenLogprobs]:
    """The engine's raw entries from those of a finished output."""
    return [
        tuple((token_id, one.logprob, one.rank) for token_id, one in entry.items())
        for entry in described or ()
    ]


def likeliest(entry: TokenLogprobs, count: int) -> list[RankedToken]:
    """The ``count`` most likely tokens of a position, best first."""
    by_id = {token[0]: token for token in entry if token[2] <= count}
    return sorted(by_id.values(), key=lambda token: token[2])


def chat_logprobs(tokenizer: Tokenizer, entries: Iterable[TokenLogprobs], count: int) -> dict[str, Any]:
    """As in chat completions: exact bytes beside each token, so that half a character is no trouble."""

    def told(token: RankedToken) -> dict[str, Any]:
        data = tokenizer.token_bytes(token[0])
        return {"token": data.decode(errors="replace"), "logprob": token[1], "bytes": list(data)}

    return {
        "content": [
            {**told(entry[0]), "top_logprobs": [told(token) for token in likeliest(entry, count)]}
            for entry in entries
        ],
        "refusal": None,
    }


class CompletionLogprobs:
    """As in completions, for one choice whose tokens come in pieces: lists, and offsets in the text."""

    def __init__(self, tokenizer: Tokenizer, count: int) -> None:
        self._tokenizer = tokenizer
        self._count = count
        self._offset = 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def take(self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """The next tokens. An entry is None where nothing predicts the token: at the start of a prompt."""
        offsets = []
        for token_id in token_ids:
            offsets.append(self._offset)
            self._offset += len(self._utf8.decode(self._tokenizer.visible_bytes(token_id)))
        return {
            "tokens": [self._name(token_id) for token_id in token_ids],
            "token_logprobs": [None if entry is None else entry[0][1] for entry in entries],
            "top_logprobs": [None if entry is None else self._top(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        # Two tokens of the same text are one here; the likelier is told.
        top = {self._name(token[0]): token[1] for token in reversed(likeliest(entry, self._count))}
        return {**top, self._name(entry[0][0]): entry[0][1]}

    def _name(self, token_id: int) -> str:
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def prompt_logprobs(described: Sequence[Mapping[int, Logprob] | None] | None) -> list[Any] | None:
    """The extension of that name: per prompt token null or a mapping from token id."""
    if described is None:
        return None
    return [
        None
        if entry is None
        else {
            str(token_id): {"logprob": one.logprob, "rank": one.rank, "decoded_token": one.decoded_token}
            for token_id, one in entry.items()
        }
        for entry in described
    ]
