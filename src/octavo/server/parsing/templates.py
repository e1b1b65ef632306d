"""What a model's chat template tells without being run: which variables it looks at, and what it writes."""

import functools
from collections.abc import Iterator
from typing import Final

import jinja2
from jinja2 import meta, nodes

from octavo.text.sandbox import BoundedEnvironment

_CACHED_TEMPLATES: Final = 32


def mentions(source: str, name: str) -> bool:
    """Whether a template looks at a variable, such as ``enable_thinking``, that it is given.

    False for a source that is no template: it cannot be rendered either.
    """
    return name in _read(source)[0]


def knows_tools(source: str) -> bool:
    """Whether a template looks at ``tools``; what is given to one that does not never reaches the model."""
    return mentions(source, "tools")


def written_text(source: str) -> str:
    """All texts in a template, those within its expressions too, but no comments."""
    return _read(source)[1]


@functools.lru_cache(_CACHED_TEMPLATES)
def _read(source: str) -> tuple[frozenset[str], str]:
    """Variables and texts of a template; parsing one takes milliseconds."""
    try:
        tree = BoundedEnvironment().parse(source)
        return frozenset(meta.find_undeclared_variables(tree)), "\n".join(_texts(tree))
    except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError):  # nested too deep, among others
        return frozenset(), ""


def _texts(tree: nodes.Template) -> Iterator[str]:
    for node in tree.find_all((nodes.TemplateData, nodes.Const)):
        text = node.data if isinstance(node, nodes.TemplateData) else node.as_const()
        if isinstance(text, str):
            yield text
