"""Which tokens end generation.

Model files declare this in several places, none of them complete, so the union of these is taken, in this
order (the first is the model's main end token):

1. what the files declare: the tokenizer's ``eos_token``; ``eos_token_id`` of ``generation_config.json`` or
   else of ``config.json``, a number or a list, as in transformers; in a GGUF file the ids of its EOS, EOT and
   EOM keys;
2. end-of-turn tokens, known by their text, that one of the model's chat templates writes. A model that
   follows its template emits them at the end of its answer, whatever its files declare (base models
   declare the end of text only);
3. end-of-text tokens, known by their text: after one of them a model goes on with an unrelated document.

llama.cpp goes by text alone and ends at every token it knows, template or not; transformers goes by the
declarations alone, but a GGUF file has no ``generation_config.json`` to declare them in. By these rules the
same model gets the same set from both kinds of file.
"""

from collections.abc import Callable, Iterable

END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|end|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<turn|>",
    "<end_of_utterance>",
    "[EOT]",
)
END_OF_TEXT = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)


def find_end_tokens(
    declared: Iterable[int | None], find_token: Callable[[str], int | None], templates: Iterable[str]
) -> tuple[int, ...]:
    """Ids of the tokens that end generation, without repetition.

    Args:
        declared: what the model's files say, most important first.
        find_token: id of the token matched whole by a text, or None.
        templates: sources of the model's chat templates.
    """
    sources = tuple(templates)
    of_turn = [find_token(text) for text in END_OF_TURN if any(text in source for source in sources)]
    of_text = [find_token(text) for text in END_OF_TEXT]
    return tuple(dict.fromkeys(id_ for id_ in (*declared, *of_turn, *of_text) if id_ is not None))
