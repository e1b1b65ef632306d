"""What made-up prompts consist of: token ids, or words, drawn from a seed."""

from array import array
from dataclasses import dataclass
from typing import Final

import numpy as np

from octavo.bench.workloads.item import TokenIds

# Ids that nearly every vocabulary has, beyond bytes and special tokens: the same requests suit many models.
USUAL_FIRST_TOKEN: Final = 1_000
USUAL_VOCAB: Final = 10_000

# Short and frequent, so that most tokenizers have one token for each, with the space before it.
_WORDS: Final = tuple(
    """
    the of and to in a is that for it was on are as with his they at be this from have or by one had not but
    what all were when we there can an your which their said if do will each about how up out them then she
    many some so these would other into has more her two like him see time could no make than first been its
    who now people my made over did down only way find use may water long little very after words called
    just where most know get through back much before go good new write our used me man too any day same
    right look think also around another came come work three word must because does part even place well
    such here take why things help put years different away again off went old number great tell men say
    small every found still between name should home big give air line set own under read last never us left
    end along while might next sound below saw something thought both few those always looked show large
    often together asked house world going want school important until form food keep children feet land
    side without boy once animals life enough took sometimes four head above kind began almost live page got
    earth need far hand high year mother light parts country father let night following picture being study
    second eyes soon times story boys since white days ever paper hard near sentence better best across
    during today others however sure means knew try told young miles sun ways thing whole hear example heard
    several change answer room sea against top turned learn point city play toward five using himself
    usually
    """.split()  # noqa: SIM905  # words are read more easily than a list of them
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token ids to draw from: ``first`` to ``size - 1``."""

    first: int = USUAL_FIRST_TOKEN
    size: int = USUAL_VOCAB

    @staticmethod
    def of_size(size: int) -> "Vocabulary":
        """The usual ids as far as a vocabulary has them, or all of a tiny one."""
        return Vocabulary() if size >= USUAL_VOCAB else Vocabulary(0, size)


def random_tokens(rng: np.random.Generator, count: int, vocabulary: Vocabulary) -> TokenIds:
    """``count`` token ids."""
    return array("i", rng.integers(vocabulary.first, vocabulary.size, count, np.int32).tobytes())


def random_words(rng: np.random.Generator, count: int) -> str:
    """``count`` words; with most tokenizers about as many tokens."""
    return " ".join(_WORDS[i] for i in rng.integers(0, len(_WORDS), count))


def stream_of(*key: int) -> np.random.Generator:
    """Random numbers of their own for each key of integers, which may be negative.

    No part becomes 0: NumPy fills up short keys with zeros, and two of them would be the same.
    """
    return np.random.default_rng([2 * k + 1 if k >= 0 else -2 * k for k in key])
