"""A Jinja2 environment in which a template that comes with a model cannot run away.

Jinja2's sandbox keeps templates from Python's internals and from changing what they are given. This one also
bounds them: processor time (looked at in every turn of a loop, call and filter), the length of ``range``, the
size of every text and list that an operator, filter or method makes and of all of them together, and the
length of the output. What is *not* bounded is the time of one operation on values within those sizes, and the
size of structures nested by list and dict literals: the bounds stop mistakes and simple bombs, not every
template made to do harm. Such a template can slow its own model down; it cannot read files or run code.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_CHARS = 1 << 24
MAX_ITEMS = 1 << 20
MAX_TOTAL = 1 << 28
MAX_BITS = 1 << 12

# Names no template can write, because of the spaces.
_BUDGET = "time budget"
_WATCH = "watch loop"
_CONCATENATE = "join texts"

_LONG_NUMBER = re.compile(r"\d{5}|\*|\{[^{}]*\{")


class TemplateLimit(jinja2.TemplateRuntimeError):
    """A template went past one of the bounds."""


class _Budget:
    """What one rendering may still use: processor time of its thread, and characters and items to make."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.thread_time() + seconds
        self._size = MAX_TOTAL

    def check_time(self) -> None:
        if time.thread_time() > self._end:
            raise TemplateLimit(f"the template ran for more than {self._seconds:g} s")

    def take(self, size: int) -> None:
        self._size -= size
        if self._size < 0:
            _refuse(f"values of more than {MAX_TOTAL} characters and items in all")


class _GenerationTag(Extension):
    """``{% generation %}``: training tools mark the assistant's text with it; here its body is just text."""

    tags = {"generation"}  # noqa: RUF012 - Jinja2's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Namespace(Namespace):
    """``namespace()`` without underscore names, which lead to Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # without self, so that a name may be "self"
        self, *rest = args
        names = dict(*rest, **kwargs)
        for name in names:
            _check_name(name)
        Namespace.__init__(self, names)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot have the name {name!r}")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The environment that chat templates are rendered in; use ``render_bounded``."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, LoopControlExtension]
        )
        self._unbounded = jinja2.Environment()  # the filters as Jinja2 has them
        self.filters = {name: _bounded_filter(self._unbounded, name) for name in self._unbounded.filters}
        self.filters |= {_WATCH: _watch, _CONCATENATE: _concatenate}
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace

    def compile_bounded(self, source: str) -> jinja2.Template:
        """Compile a template so that its loops and concatenations keep to the bounds.

        Raises:
            jinja2.TemplateSyntaxError: the source is not a template.
        """
        tree = self.parse(source)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = nodes.Filter(loop.iter, _WATCH, [], [], None, None, lineno=loop.lineno)
        for parent in reversed([tree, *tree.find_all(nodes.Node)]):  # children before their parents
            _replace_concatenations(parent)
        tree.set_environment(self)
        return jinja2.Template.from_code(self, self.compile(tree), self.make_globals(None))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function or method for a template."""
        _check_time(__context)
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str):
            args = (list(args[0]),) if name == "join" and len(args) == 1 else args
            _check_growth(name, owner, [*args, *kwargs.values()])
        return _take(__context, super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Work out an operator for a template."""
        _check_time(context)
        if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            _check_length(left, len(left) + len(right))
        elif operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, str | list | tuple) and isinstance(times, int):
                    _check_length(sequence, len(sequence) * times)
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * right)
        elif operator == "%" and isinstance(left, str):
            _check_growth("format", left, list(right) if isinstance(right, tuple) else [right])
        return _take(context, super().call_binop(context, operator, left, right))


def render_bounded(template: jinja2.Template, variables: Mapping[str, Any], *, time_limit_s: float) -> str:
    """Render a template made by ``compile_bounded``.

    Raises:
        TemplateLimit: it ran too long or made too much.
        Exception: whatever the template's own operations raise.
    """
    parts: list[str] = []
    num_chars = 0
    for part in template.generate(variables, **{_BUDGET: _Budget(time_limit_s)}):
        num_chars += len(part)
        if num_chars > MAX_CHARS:
            _refuse(f"an output of more than {MAX_CHARS} characters")
        parts.append(part)
    return "".join(parts)


def _replace_concatenations(parent: nodes.Node) -> None:
    # a ~ b becomes a filter over [a, b], because Jinja2 has no hook for the operator.
    def replaced(child: Any) -> Any:
        if not isinstance(child, nodes.Concat):
            return child
        texts = nodes.List(child.nodes, lineno=child.lineno)
        return nodes.Filter(texts, _CONCATENATE, [], [], None, None, lineno=child.lineno)

    for field, value in parent.iter_fields():
        setattr(parent, field, [replaced(v) for v in value] if isinstance(value, list) else replaced(value))


def _bounded_filter(unbounded: jinja2.Environment, name: str) -> Any:
    @jinja2.pass_context  # also keeps constant expressions from being worked out while compiling
    def bounded(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        _check_time(context)
        operands = [*args, *kwargs.values()]
        if name == "join":
            value = list(value)
            _check_growth(name, str(operands[0]) if operands else "", [value])
        else:
            _check_growth(name, value if isinstance(value, str) else "", operands)
        return _take(context, unbounded.call_filter(name, value, args, kwargs, context=context))

    return bounded


@jinja2.pass_context
def _watch(context: Context, values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _check_time(context)
        yield value


@jinja2.pass_context
def _concatenate(context: Context, values: list[Any]) -> str:
    _check_time(context)
    texts = [str(value) for value in values]
    _check_length("", sum(map(len, texts)))
    return str(_take(context, "".join(texts)))


def _check_time(context: Context) -> None:
    context.resolve(_BUDGET).check_time()


def _take(context: Context, value: Any) -> Any:
    """Count a value just made against the bounds."""
    if isinstance(value, str | list | tuple | dict):
        _check_length(value, len(value))
        context.resolve(_BUDGET).take(len(value))
    return value


def _refuse(what: str) -> NoReturn:
    raise TemplateLimit(f"the template makes {what}")


def _check_length(kind: object, length: int) -> None:
    limit, unit = (MAX_CHARS, "characters") if isinstance(kind, str) else (MAX_ITEMS, "items")
    if length > limit:
        _refuse(f"a value of {length} {unit}, at most {limit} are allowed")


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        _refuse(f"a number of more than {MAX_BITS} bits")


def _check_growth(name: str, text: str, operands: list[Any]) -> None:
    """Refuse a filter or text method whose result would be too long, before it is made."""
    numbers = [abs(operand) for operand in operands if isinstance(operand, int)]
    widest = max(numbers, default=0)
    _check_length((), widest)
    added = 0
    if name == "replace" and len(operands) > 1:
        added = text.count(str(operands[0])) * len(str(operands[1]))
    elif name in ("center", "ljust", "rjust", "zfill"):
        added = widest
    elif name in ("indent", "expandtabs"):
        width = max([widest, *(len(operand) for operand in operands if isinstance(operand, str))])
        added = (1 + text.count("\n") + text.count("\t")) * width
    elif name == "join" and operands:
        added = sum(len(text) + len(str(item)) for item in operands[0])
    elif name in ("format", "format_map"):
        if _LONG_NUMBER.search(text):
            _refuse("a format with a width that is computed or has five digits")
        num_fields = text.count("{") + text.count("%")
        added = num_fields * max([len(str(operand)) for operand in operands], default=0)
    elif name == "translate":
        _refuse("a call of translate(), which is not available")
    _check_length("", len(text) + added)
