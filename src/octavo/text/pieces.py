"""How a vocabulary entry spells bytes.

A vocabulary stores pieces as text, yet a token stands for bytes, often for part of a character. Two spellings
exist: byte-level vocabularies write each byte as one printable character (GPT-2's table); SentencePiece
writes a space as U+2581 and a byte that no piece covers as ``<0xE4>``.
"""

import re
from collections.abc import Callable

PieceBytes = Callable[[str], bytes]

SPACE_MARK = "\u2581"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def _byte_alphabet() -> dict[str, int]:
    # Printable Latin-1 bytes stand for themselves; the others take the characters from U+0100 on, in order.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _byte_alphabet()
CHAR_OF = {byte: char for char, byte in BYTE_OF.items()}


def byte_level_bytes(piece: str) -> bytes:
    """Bytes of a byte-level piece; a piece outside GPT-2's alphabet stands for its own UTF-8."""
    try:
        return bytes([BYTE_OF[char] for char in piece])
    except KeyError:
        return piece.encode()


def sentencepiece_bytes(piece: str) -> bytes:
    """Bytes of a SentencePiece piece, byte pieces included."""
    match = _BYTE_PIECE.match(piece)
    return bytes([int(match[1], 16)]) if match else marked_bytes(piece)


def marked_bytes(piece: str) -> bytes:
    """Bytes of a piece whose only convention is U+2581 for a space."""
    return piece.replace(SPACE_MARK, " ").encode()
