"""Text from files and networks, made safe for a terminal."""


def printable(text: str) -> str:
    r"""Escape what does not print, such as control characters: a terminal would obey them.

    Newlines too, so that one line stays one; ``"\x1b[31m"`` becomes ``"\\x1b[31m"``.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
