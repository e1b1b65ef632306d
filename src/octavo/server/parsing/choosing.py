"""Which parsers suit a model, and a parser for each of its outputs."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from octavo.server.parsing import hermes, llama3, reasoning
from octavo.server.parsing.events import OutputParser, PlainParser
from octavo.server.parsing.templates import written_text
from octavo.server.settings import ReasoningParserName, ToolParserName

ToolFormat = Literal["hermes", "llama3"]

# Formats whose calls stand between the same tags as those of Hermes, but are not JSON.
_OTHER_TAGGED: Final = ("<function=", "<arg_key>")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserChoice:
    """How a model writes what is not content.

    Attributes:
        tools: the form of its calls; None if it is not known to make any.
        thinks: whether its thoughts stand between ``<think>`` and ``</think>``.
        needs_special_tokens: a tag that its parsers look for is a special token of the model, so its text
            must be decoded with ``skip_special_tokens=False``.
    """

    tools: ToolFormat | None = None
    thinks: bool = False
    needs_special_tokens: bool = False


def choose_parsers(
    templates: Iterable[str],
    *,
    special_tokens: Collection[str] = (),
    tool_parser: ToolParserName = "auto",
    reasoning_parser: ReasoningParserName = "auto",
) -> ParserChoice:
    """Choose as the settings say; "auto" goes by what the chat templates write.

    Args:
        templates: sources of all chat templates of the model; there may be none.
        special_tokens: texts of the tokens that decoded text leaves out.
        tool_parser: "auto", "hermes", "llama3" or "none".
        reasoning_parser: "auto", "think" or "none".
    """
    text = "\n".join(map(written_text, templates))
    tools: ToolFormat | None = None
    if tool_parser == "auto":
        tools = _find_tools(text)
    elif tool_parser != "none":
        tools = tool_parser
    thinks = reasoning_parser == "think"
    if reasoning_parser == "auto":  # some templates leave the opening tag to the model
        thinks = reasoning.OPENS in text or reasoning.CLOSES in text
    tags = [hermes.OPENS, hermes.CLOSES] if tools == "hermes" else []
    tags += [reasoning.OPENS, reasoning.CLOSES] if thinks else []
    hidden = any(tag in special_tokens for tag in tags)
    return ParserChoice(tools=tools, thinks=thinks, needs_special_tokens=hidden)


def make_parser(
    choice: ParserChoice, *, tool_names: Collection[str] = (), begins_inside: bool = False
) -> OutputParser:
    """A parser for one output.

    Args:
        choice: of the model.
        tool_names: functions that the model may call in this request; none if it was given none, or if its
            ``tool_choice`` is "none". Calls are then content.
        begins_inside: whether the prompt ended inside the thoughts (``reasoning.ends_inside``).
    """
    parser: OutputParser = PlainParser()
    if tool_names and choice.tools == "hermes":
        parser = hermes.HermesParser(frozenset(tool_names))
    elif tool_names and choice.tools == "llama3":
        parser = llama3.Llama3Parser(frozenset(tool_names))
    return reasoning.ReasoningParser(parser, begins_inside=begins_inside) if choice.thinks else parser


def _find_tools(text: str) -> ToolFormat | None:
    if hermes.OPENS in text:
        return None if any(tag in text for tag in _OTHER_TAGGED) else "hermes"
    if llama3.PYTHON_TAG in text or ("ipython" in text and "parameters" in text):
        return "llama3"
    return None
