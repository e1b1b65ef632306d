"""How much of the prompts of a trace a prefix cache could have, if it kept all that came before."""

from collections.abc import Iterable, Sequence


def reusable_fraction(prompts: Iterable[tuple[int, Sequence[int]]], block_len: int) -> float:
    """The fraction of all prompt tokens with which an earlier prompt begins too.

    Args:
        prompts: length in tokens, and the names of its blocks, of each in the order of arrival; blocks of the
            same name have the same tokens.
        block_len: tokens of a block; the last of a prompt may have fewer.
    """
    root = 0
    children: dict[tuple[int, int], int] = {}  # of a tree: (node, name of a block) -> node
    longest = [0]  # by node: tokens that earlier prompts have in its block, at most
    reusable = total = 0
    for length, names in prompts:
        total += length
        node = root
        for left, name in zip(range(length, 0, -block_len), names, strict=False):
            tokens = min(left, block_len)
            node = children.setdefault((node, name), len(longest))
            if node == len(longest):
                longest.append(0)
            reusable += min(tokens, longest[node])
            longest[node] = max(longest[node], tokens)
    return reusable / total if total else 0.0
