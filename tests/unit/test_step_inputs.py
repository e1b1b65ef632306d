"""How a step is laid out."""

import numpy as np

from octavo.attention.plan import StepInputs

TABLES = (np.zeros((4, 3), np.int32),)


def test_the_usual_step_is_what_any_step_is():
    usual = StepInputs.decode([3, 0, 2], [7, 0, 15], [40, 41, 42], TABLES)
    any_step = StepInputs.build([(3, 7, [40], 1), (0, 0, [41], 1), (2, 15, [42], 1)], TABLES)
    for name in (name for name in StepInputs._fields if name != "block_tables"):
        found, right = getattr(usual, name), getattr(any_step, name)
        assert found.dtype == right.dtype == np.int32
        assert found.flags.c_contiguous
        assert found.tolist() == right.tolist(), name


def test_logits_of_the_last_tokens_of_each_row():
    step = StepInputs.build([(0, 0, [1, 2, 3], 2), (1, 4, [4], 0), (2, 9, [5, 6], 2)], TABLES)
    assert step.logit_tokens.tolist() == [1, 2, 4, 5]
