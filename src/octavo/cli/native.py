"""What the native extension says of itself; it may be missing in a source tree that was not built."""

from octavo.core.errors import InvalidConfig


def native_isa() -> str | None:
    """The instruction set whose kernels run, or None without the extension."""
    try:
        from octavo import _native
    except ImportError:
        return None
    try:
        return str(_native.isa())
    except ValueError as error:  # OCTAVO_ISA names none of them
        raise InvalidConfig(str(error)) from error


def available_isas() -> list[str]:
    """Instruction sets that are compiled in and that this CPU has, best first."""
    try:
        from octavo import _native
    except ImportError:
        return []
    return [str(isa) for isa in _native.available_isas()]


def usable_cores() -> int:
    """Cores this process may use, within its affinity and its quota."""
    try:
        from octavo import _native
    except ImportError:
        import os

        return os.cpu_count() or 1
    return int(_native.usable_cores())
