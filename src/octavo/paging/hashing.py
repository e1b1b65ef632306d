"""Names: what a block is called is what it contains.

The name of a run of tokens is a chained hash: the hash of its parent's name and its own token ids. The chain
starts at a root made of the namespace (model, KV dtype, layout) and the salt (tenant), so equal tokens under
another model or another tenant have another name. One chain, one link per ``unit`` tokens, serves every group
of layers: a block of 64 tokens is called what the chain is called after its 64th token.
"""

from array import array
from collections.abc import Callable, Iterable
from hashlib import blake2b

NAME_BYTES = 16
TOKEN_BYTES = 4

HashFunction = Callable[[bytes, bytes], bytes]


def content_hash(parent: bytes, content: bytes) -> bytes:
    """Name of ``content`` (token ids as bytes) after the run named ``parent``; 16 bytes of BLAKE2b."""
    return blake2b(parent + content, digest_size=NAME_BYTES).digest()


def root_name(namespace: str, salt: str, hash_function: HashFunction = content_hash) -> bytes:
    """Name of the empty run. Lengths go first, so no two (namespace, salt) pairs read alike."""
    fields = [text.encode() for text in (namespace, salt)]
    return hash_function(bytes(NAME_BYTES), b"".join(len(f).to_bytes(8, "little") + f for f in fields))


def pack_tokens(token_ids: Iterable[int]) -> "array[int]":
    """Token ids as a compact array, TOKEN_BYTES each.

    Raises:
        OverflowError, TypeError: an id is negative, too large or no integer.
    """
    return array("I", token_ids)


class NameChain:
    """The names of one token sequence, one per ``unit`` tokens, computed when first asked for.

    The tokens stay with their owner and are passed in; a chain only remembers what it has hashed.
    """

    __slots__ = ("_hash", "names", "root", "unit")

    def __init__(self, root: bytes, unit: int, hash_function: HashFunction) -> None:
        self.root = root
        self.unit = unit
        self.names: list[bytes] = []
        self._hash = hash_function

    def name(self, tokens: "array[int]", stop: int) -> bytes:
        """Name of ``tokens[:stop]``; ``stop`` is a positive multiple of the unit within the tokens."""
        names, unit = self.names, self.unit
        for start in range(len(names) * unit, stop, unit):
            parent = names[-1] if names else self.root
            names.append(self._hash(parent, tokens[start : start + unit].tobytes()))
        return names[stop // unit - 1]

    def copy(self) -> "NameChain":
        """An independent chain that knows the same names."""
        twin = NameChain(self.root, self.unit, self._hash)
        twin.names = self.names.copy()
        return twin

    def truncate(self, num_tokens: int) -> None:
        """Forget the names that reach past the first ``num_tokens`` tokens."""
        del self.names[num_tokens // self.unit :]
