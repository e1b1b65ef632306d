"""Bytes as people write them: ``"4GiB"`` to an integer and back."""

import re

from octavo.core.errors import shown

_FACTORS = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kib": 1 << 10,
    "kb": 10**3,
    "m": 1 << 20,
    "mib": 1 << 20,
    "mb": 10**6,
    "g": 1 << 30,
    "gib": 1 << 30,
    "gb": 10**9,
    "t": 1 << 40,
    "tib": 1 << 40,
    "tb": 10**12,
    "p": 1 << 50,
    "pib": 1 << 50,
    "pb": 10**15,
}
_MAX_BYTES = 2**63 - 1  # what a file or a mapping can have
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*\Z")


def parse_bytes(value: int | str) -> int:
    """Turn ``4294967296``, ``"4GiB"`` or ``"512 MB"`` into a number of bytes.

    Raises:
        ValueError: the text is not a number followed by a known unit, or the value is negative or at least
            2**63.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value <= _MAX_BYTES:
            raise ValueError(f"a number of bytes must be from 0 to 2**63 - 1, not {shown(value)}")
        return value
    match = _PATTERN.match(value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _FACTORS:
        raise ValueError(
            f"not a size in bytes: {shown(value)}; write for example '4GiB', '512MiB' or 1073741824"
        )
    number = float(match[1]) * _FACTORS[match[2].lower()]  # infinite if there are hundreds of digits
    if number > _MAX_BYTES:
        raise ValueError(f"a number of bytes must be less than 8192 PiB, not {shown(value)}")
    return int(number)


def format_bytes(num_bytes: float) -> str:
    """Turn a number of bytes into text with a binary unit, such as ``"3.5 GiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} PiB"
