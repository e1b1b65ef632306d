"""What a terminal may be shown: text from a model or a file must not be able to command it."""

from typing import Final, TextIO

# Control characters (C0 but newline and tab, DEL, C1) as escapes that one sees and that do nothing.
_VISIBLE: Final = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}


def visible(text: str, stream: TextIO) -> str:
    """``text`` as it may be written to ``stream``: harmless if that is a terminal, itself otherwise."""
    return text.translate(_VISIBLE) if stream.isatty() else text
