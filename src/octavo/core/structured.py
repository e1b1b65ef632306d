"""What a user may ask the output to look like: a JSON schema, a regular expression, a choice or a grammar."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

from octavo.core.errors import InvalidRequest, shown

StructuredKind = Literal["json_schema", "regex", "choice", "grammar"]

_KINDS: Final[tuple[StructuredKind, ...]] = ("json_schema", "regex", "choice", "grammar")

# What a compiler is given at most; the largest of these take it a few seconds.
MAX_SCHEMA_CHARS: Final = 128 * 1024
MAX_REGEX_CHARS: Final = 16 * 1024
MAX_GRAMMAR_CHARS: Final = 128 * 1024
MAX_CHOICES: Final = 4096
MAX_CHOICE_CHARS: Final = 128 * 1024  # of all choices together

_ANY_VALUE: Final = "{}"
_ANY_OBJECT: Final = '{"type":"object"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutput:
    """The language that an output must belong to. Exactly one of the fields is given.

    Values are checked and brought into one form when it is made, so equal requests are equal and hash alike.

    Attributes:
        json_schema: a JSON schema as an object or as JSON text, or True for any JSON value. An object's
            properties come in the order in which the schema names them. Becomes JSON text.
        json_object: True for any JSON object; becomes ``json_schema={"type": "object"}``.
        regex: a regular expression that the whole output matches, in the syntax of Rust's ``regex`` crate.
        choice: texts, of which the output is one. Becomes a tuple.
        grammar: a context-free grammar, in llguidance's variant of Lark (the first rule is ``start``) or in
            GBNF (``root``).

    Raises:
        InvalidRequest: none or several are given, a value has the wrong type or is over its limit; names the
            field.
    """

    json_schema: Mapping[str, Any] | str | bool | None = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | list[str] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.json_object, bool):
            _refuse("json_object", f"must be True or False, not {shown(self.json_object)}")
        given: list[str] = [kind for kind in _KINDS if getattr(self, kind) is not None]
        given += ["json_object"] if self.json_object else []
        if len(given) != 1:
            names = ", ".join((*_KINDS, "json_object"))
            _refuse("structured_output", f"give exactly one of {names}; given: {', '.join(given) or 'none'}")
        if self.json_object:
            object.__setattr__(self, "json_schema", _ANY_OBJECT)
            object.__setattr__(self, "json_object", False)
        elif self.json_schema is not None:
            object.__setattr__(self, "json_schema", _schema_text(self.json_schema))
        elif self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        elif self.regex is not None:
            _check_text("regex", self.regex, MAX_REGEX_CHARS)
        else:
            _check_text("grammar", self.grammar, MAX_GRAMMAR_CHARS)

    @property
    def kind(self) -> StructuredKind:
        """Which of the four it is: the name of its field."""
        return next(kind for kind in _KINDS if getattr(self, kind) is not None)


def _refuse(param: str, reason: str) -> NoReturn:
    raise InvalidRequest(f"{param}: {reason}", param=param)


def _check_text(param: str, text: object, max_chars: int) -> None:
    if not isinstance(text, str) or not text:
        _refuse(param, f"must be a text, not empty; given: {shown(text)}")
    if len(text) > max_chars:
        _refuse(param, f"{len(text)} characters, at most {max_chars} are allowed")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        _refuse(param, f"character {error.start} is a lone surrogate (U+{ord(text[error.start]):04X})")


def _schema_text(schema: object) -> str:
    """The schema as JSON text, its keys in the order in which they were given."""
    param = "json_schema"
    try:
        if isinstance(schema, str):
            _check_text(param, schema, MAX_SCHEMA_CHARS)
            schema = json.loads(schema)
        if schema is True:
            return _ANY_VALUE
        if not isinstance(schema, Mapping):
            _refuse(param, f"must be an object, its JSON text, or True, not {shown(schema)}")
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except InvalidRequest:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{param}: it is not JSON: {error}", param=param) from None
    _check_text(param, text, MAX_SCHEMA_CHARS)
    return text


def _choices(choice: object) -> tuple[str, ...]:
    param = "choice"
    if not isinstance(choice, (tuple, list)) or not choice:
        _refuse(param, f"must be a list of texts, not empty; given: {shown(choice)}")
    if len(choice) > MAX_CHOICES:
        _refuse(param, f"{len(choice)} choices, at most {MAX_CHOICES} are allowed")
    for text in choice:
        _check_text(param, text, MAX_CHOICE_CHARS)
    num_chars = sum(map(len, choice))
    if num_chars > MAX_CHOICE_CHARS:
        _refuse(param, f"{num_chars} characters together, at most {MAX_CHOICE_CHARS} are allowed")
    return tuple(dict.fromkeys(choice))
