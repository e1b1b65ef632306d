"""Text for people: numbers of things, and what files and networks say, made safe for a terminal."""


def printable(text: str) -> str:
    r"""Escape what does not print, such as control characters: a terminal would obey them.

    Newlines too, so that one line stays one; ``"\x1b[31m"`` becomes ``"\\x1b[31m"``.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(number: int | str, thing: str) -> str:
    """``"1 round"``, ``"2,000 rounds"``; a text is a number too, or a law that draws one."""
    text = number if isinstance(number, str) else f"{number:,}"
    return f"{text} {thing}" if text == "1" else f"{text} {thing}s"
