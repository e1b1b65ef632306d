"""Chat messages to the one text a model was trained to continue.

The template is a Jinja2 program that comes with the model. It sees what transformers shows it: ``messages``,
``tools``, ``documents``, ``add_generation_prompt``, the special tokens by role, ``raise_exception``,
``strftime_now``, and a ``tojson`` that leaves HTML characters alone. ``octavo.text.sandbox`` says what it
cannot do.

The result is text, special tokens spelled out, to be encoded with ``Tokenizer.encode`` as any prompt (it adds
no second BOS token). A message's content is not escaped: special tokens written in it count as such, as in
transformers. Whoever shows a model text that others wrote should remove them first.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2

from octavo.core.errors import InvalidRequest
from octavo.text.messages import Message, check_messages, flatten_content, plain_value, refuse
from octavo.text.sandbox import BoundedEnvironment, render_bounded

_PROBE = "octavo-probe"


class _Raised(jinja2.TemplateError):
    """What ``raise_exception`` in a template raises."""


class ChatTemplate:
    """The chat templates of one model; safe to share between threads.

    Args:
        templates: the source, or sources by name. ``tool_use``, if there is one, is taken where tools are
            given, and ``default`` otherwise.
        special_tokens: what templates may refer to by name, such as ``bos_token``.
        time_limit_s: processor time that one rendering may take.
    """

    def __init__(
        self,
        templates: str | Mapping[str, str],
        special_tokens: Mapping[str, str] | None = None,
        *,
        time_limit_s: float = 5.0,
    ) -> None:
        self._sources = {"default": templates} if isinstance(templates, str) else dict(templates)
        self._special_tokens = dict(special_tokens or {})
        self._time_limit_s = time_limit_s
        self._environment = BoundedEnvironment()
        self._environment.filters["tojson"] = _to_json
        self._environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        # Cached per instance: templates compile when first used, so a broken one only matters if it is.
        self._compile = functools.cache(self._compile_named)
        self._takes_parts = functools.cache(self._probe_parts)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the templates."""
        return tuple(self._sources)

    @property
    def sources(self) -> tuple[str, ...]:
        """The templates' own texts."""
        return tuple(self._sources.values())

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        documents: Sequence[Mapping[str, object]] | None = None,
        name: str | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Render a conversation.

        Args:
            messages: ``{"role": ..., "content": ...}`` each; ``octavo.text.messages.check_messages`` says
                what else. Content given as a list of text parts becomes one text, unless the template
                handles lists.
            add_generation_prompt: end with what opens the assistant's answer.
            tools: JSON schemas of the functions the model may call.
            documents: texts to answer from, for templates that take them.
            name: which of several templates.
            variables: what else a template may look at, such as ``enable_thinking``.

        Raises:
            InvalidRequest: messages of the wrong shape, an unknown template name, or the template refused or
                failed; the message is then the template's own.
        """
        plain = check_messages(messages)
        name = self._choose(name, has_tools=bool(tools))
        if any(isinstance(message.get("content"), list) for message in plain) and not self._takes_parts(name):
            plain = flatten_content(plain)
        extra = plain_value(variables or {}, "chat_template_kwargs")
        return self._render_named(
            name,
            {
                **self._special_tokens,
                **extra,
                "messages": plain,
                "tools": _objects(tools, "tools"),
                "documents": _objects(documents, "documents"),
                "add_generation_prompt": add_generation_prompt,
            },
        )

    def _choose(self, name: str | None, *, has_tools: bool) -> str:
        if name is None:
            name = "tool_use" if has_tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            refuse(
                "chat_template", f"there is no template {name!r}; the model has: {', '.join(self._sources)}"
            )
        return name

    def _compile_named(self, name: str) -> jinja2.Template:
        try:
            return self._environment.compile_bounded(self._sources[name])
        except jinja2.TemplateSyntaxError as error:
            refuse("chat_template", f"{name!r} is not a valid template: line {error.lineno}: {error.message}")
        except (RecursionError, SyntaxError, ValueError) as error:  # nested too deep for Jinja2 or for Python
            refuse("chat_template", f"{name!r} is not a valid template: {error}")

    def _render_named(self, name: str, variables: Mapping[str, Any]) -> str:
        template = self._compile(name)
        try:
            return render_bounded(template, variables, time_limit_s=self._time_limit_s)
        except _Raised as error:
            refuse("messages", f"the chat template refuses them: {error.message}")
        except Exception as error:  # a template can make Python raise anything
            message = str(error) or type(error).__name__
            raise InvalidRequest(
                f"messages: the chat template failed: {message}", param="messages"
            ) from error

    def _probe_parts(self, name: str) -> bool:
        """Whether the template reads lists of parts: a part's text comes out, and not as a Python literal."""
        message: Message = {"role": "user", "content": [{"type": "text", "text": _PROBE}]}
        variables = {"messages": [message], "tools": None, "documents": None, "add_generation_prompt": False}
        try:
            text = self._render_named(name, {**self._special_tokens, **variables})
        except InvalidRequest:
            return False
        return _PROBE in text and f"'{_PROBE}'" not in text and f'"{_PROBE}"' not in text


def _objects(values: Sequence[Mapping[str, object]] | None, where: str) -> list[Any] | None:
    if values is None:
        return None
    plain = plain_value(values, where)
    if not isinstance(plain, list) or not all(isinstance(value, dict) for value in plain):
        refuse(where, "expected a list of objects")
    return plain


def _raise_exception(message: object) -> NoReturn:
    raise _Raised(str(message))


def _strftime_now(format_: str) -> str:
    return datetime.now().strftime(format_)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
