"""What the name of a file says about it."""


def is_gguf(name: str) -> bool:
    """Whether a file of this name or path is taken for a GGUF file: ``.gguf`` in upper or lower case."""
    return name.lower().endswith(".gguf")
