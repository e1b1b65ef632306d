"""Text out of a stream of tokens, never half a character."""

import codecs

from octavo.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turns tokens into text one at a time.

    What ``push`` returned so far plus ``flush`` equals ``Tokenizer.decode`` of all ids. Bytes that may still
    become a character wait; U+FFFD appears only for bytes that cannot any more, at the token that settles
    it or at the flush. Work per token is proportional to the token's own bytes.

    Args:
        tokenizer: the model's tokenizer.
        skip_special: leave special tokens out of the text.
        continuation: the tokens continue an earlier text (a prompt, say), so a leading space is theirs and
            stays; otherwise tokenizers that put a space in front of every text take it away again.
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special: bool = True, *, continuation: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._strip_space = tokenizer.strips_leading_space and not continuation
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Take the next token; return the text it completes, possibly none."""
        data = self._tokenizer.visible_bytes(token_id, skip_special=self._skip_special)
        if self._strip_space and data:
            self._strip_space = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def token_text(self, token_id: int) -> str:
        """One token's bytes as text: special tokens as written, U+FFFD for what is no whole character."""
        return self._tokenizer.token_bytes(token_id).decode(errors="replace")

    def flush(self) -> str:
        """Return what an unfinished character leaves at the end of the stream: U+FFFD or nothing."""
        return self._utf8.decode(b"", final=True)
