"""Grammars in which a model can make nothing but proper tool calls, in its own form."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from octavo.core.errors import InvalidRequest
from octavo.core.structured import MAX_GRAMMAR_CHARS, StructuredOutput
from octavo.engine.grammar import GrammarCompiler
from octavo.server.parsing import hermes, llama3, reasoning
from octavo.server.parsing.choosing import ToolFormat
from octavo.server.parsing.tools import Tool, ToolChoice
from octavo.text.messages import refuse

# Whether thoughts may come before the calls: no, yes, or the prompt has opened them already.
Thoughts = Literal["none", "may", "inside"]

# JSON as chat templates write it.
_LAYOUT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

_TERMINALS: Final = r"""
ANY: /(.|\n)*/
SPACES: /[ \n]{1,4}/
"""


def tool_grammar(
    tools: Sequence[Tool],
    choice: ToolChoice,
    tool_format: ToolFormat | None,
    *,
    parallel: bool = True,
    thoughts: Thoughts = "none",
) -> StructuredOutput | None:
    """What an output must look like, so that its calls are what the client asked for.

    Where calls are required, the output is calls alone, and each keeps to its function's schema. Otherwise it
    is any text, in which calls keep to the schemas of functions that are ``strict`` and name no function
    that there is not; a Llama 3 output that begins with ``{`` is calls.

    Args:
        tools: all functions of the request.
        choice: which of them may or must be called.
        tool_format: how the model writes calls; None if it is not known to make any.
        parallel: whether it may make more than one.
        thoughts: whether ``<think> ... </think>`` may come first.

    Returns:
        None where nothing has to be enforced.

    Raises:
        InvalidRequest: calls must be enforced, but the form of the model's calls is not known, or the
            functions' schemas are together too large.
    """
    allowed = [tool for tool in tools if tool.name in choice.names]
    is_required = choice.mode == "required"
    is_strict = any(tool.strict for tool in allowed)
    if choice.mode == "none" or not (is_required or is_strict or not parallel):
        return None
    if tool_format is None:
        where, what = ("tool_choice", "a call") if is_required else ("tools", "'strict'")
        refuse(where, f"{what} cannot be enforced: the form of this model's tool calls is not known")
    is_single = choice.is_named or not parallel
    if tool_format == "hermes":
        rules = _hermes(is_required=is_required, is_single=is_single)
        begins, middle, ends = '\n{"name": ', ', "arguments": ', f"}}\n{hermes.CLOSES}"
    else:
        rules = _llama3(is_required=is_required, is_single=is_single)
        begins, middle, ends = '{"name": ', ', "parameters": ', "}"
    lines = [f"start: {_before(thoughts)} output", "thoughts[lazy]: ANY " + _quoted(reasoning.CLOSES)]
    lines += [rules, "call: " + " | ".join(f"call_{i}" for i in range(len(allowed)))]
    for i, tool in enumerate(allowed):
        schema = tool.parameters if is_required or tool.strict else {}
        name = _quoted(f"{begins}{json.dumps(tool.name)}{middle}")
        lines.append(f"call_{i}: {name} %json {_schema_text(schema)} {_quoted(ends)}")
    grammar = "\n".join(lines) + _TERMINALS
    if len(grammar) > MAX_GRAMMAR_CHARS:
        refuse(
            "tools",
            f"their schemas take {len(grammar)} characters in a grammar, at most {MAX_GRAMMAR_CHARS} are"
            " allowed where calls are enforced",
        )
    return StructuredOutput(grammar=grammar)


def check_tool_schemas(tools: Iterable[Tool], compiler: GrammarCompiler) -> None:
    """Compile each function's schema alone, to find the one for which ``tool_grammar`` does not compile.

    Waits for the compiler, which remembers the latest schemas.

    Raises:
        InvalidRequest: names the function and says why.
    """
    for tool in tools:
        grammar = f"start: %json {_schema_text(tool.parameters)}"
        try:
            if len(grammar) > MAX_GRAMMAR_CHARS:
                refuse("grammar", f"{len(grammar)} characters, at most {MAX_GRAMMAR_CHARS} are allowed")
            compiler.compile(StructuredOutput(grammar=grammar)).result()
        except InvalidRequest as error:
            reason = str(error).removeprefix("grammar: ")
            raise InvalidRequest(f"tools: the parameters of {tool.name!r}: {reason}", param="tools") from None


def _hermes(*, is_required: bool, is_single: bool) -> str:
    tag = _quoted(hermes.OPENS)
    if is_required:
        return f"output: {tag} call" if is_single else f'output: {tag} call ("\\n" {tag} call)*'
    output = "ANY | opens call SPACES?" if is_single else "(opens call)* ANY"
    return f"output: {output}\nopens[lazy]: ANY {tag}"  # ends with the first tag, so that ANY holds none


def _llama3(*, is_required: bool, is_single: bool) -> str:
    calls = "call" if is_single else f"call ({_quoted(f'{llama3.SEPARATOR} ')} call)*"
    return (
        f"output: {calls}" if is_required else f"output: {calls} | OTHER?\nOTHER: /[^{{ \\t\\r\\n](.|\\n)*/"
    )


def _before(thoughts: Thoughts) -> str:
    if thoughts == "none":
        return ""
    inside = "thoughts SPACES?"
    return inside if thoughts == "inside" else f"({_quoted(reasoning.OPENS)} {inside})?"


def _schema_text(schema: dict[str, Any]) -> str:
    """The schema in ASCII without control characters, which is all that Lark takes."""
    text = json.dumps({"type": "object", **schema, "x-guidance": _LAYOUT}, allow_nan=False)
    return text.replace("\x7f", "\\u007f")


def _quoted(text: str) -> str:
    return json.dumps(text)
