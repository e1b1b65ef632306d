"""The tape, its buffers and its checks; the team of threads; the choice of an instruction set."""

import dataclasses
import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from kernel_case import ISAS, arena_of, attention_of, float_tensor, run_ops, step_of

from octavo import _native
from octavo.backends.cpu import CpuBackend
from octavo.backends.recorder import OUTPUT, Recorder, assign_buffers
from octavo.core.errors import InvalidConfig


def small_program(backend: CpuBackend, max_tokens: int = 8):
    """Tokens through a norm, the cache and attention: every input of a step matters."""
    rng = np.random.default_rng(1)
    table = backend.load_embedding(float_tensor(rng.standard_normal((20, 48)).astype(np.float32)))
    return backend.compile(
        lambda ops: ops.select(ops.paged_attention(ops.rope_and_write(ops.embed(table), 0), 0)),
        arena=arena_of(),
        attention=attention_of(),
        max_tokens=max_tokens,
    )


def good_step():
    return step_of(6, [2, 5], ids=[3, 1, 4, 1, 5, 9])


INT32 = np.int32
BAD_STEPS = {
    "token_ids\\[1\\]=20: the vocabulary has 20": {"token_ids": np.array([3, 20, 4, 1, 5, 9], INT32)},
    "token_ids\\[0\\]=-1": {"token_ids": np.array([-1, 1, 4, 1, 5, 9], INT32)},
    "token_ids must be a C-contiguous int32": {"token_ids": np.array([3, 1, 4, 1, 5, 9], np.int64)},
    "positions must be a C-contiguous int32": {"positions": np.arange(12, dtype=INT32)[::2]},
    "positions must have one entry per token": {"positions": np.arange(5, dtype=INT32)},
    "positions\\[3\\]=7: must be 3": {"positions": np.array([0, 1, 2, 7, 4, 5], INT32)},
    "positions\\[5\\]=8192: the rotary table has 8192": {
        "positions": np.arange(8187, 8193, dtype=INT32),
        "context_len": np.array([8187], INT32),
    },
    "rows\\[0\\]=1: block table 0 has 1 rows": {"rows": np.array([1], INT32)},
    "rows\\[0\\]=-1": {"rows": np.array([-1], INT32)},
    "query_start must run from 0": {"query_start": np.array([0, 5], INT32)},
    "query_start and context_len must match": {"query_start": np.array([0, 3, 6], INT32)},
    "query_start\\[1\\]=0: each row must have a token": {
        "query_start": np.array([0, 0, 6], INT32),
        "rows": np.array([0, 0], INT32),
        "context_len": np.array([0, 0], INT32),
    },
    "context_len\\[0\\]=-2": {"context_len": np.array([-2], INT32)},
    "logit_tokens\\[1\\]=6: must ascend": {"logit_tokens": np.array([0, 6], INT32)},
    "logit_tokens\\[1\\]=2: must ascend": {"logit_tokens": np.array([2, 2], INT32)},
    "0 block tables, the KV layout 1": {"block_tables": ()},
    "a block table must be a C-contiguous int32": {"block_tables": (np.ones(4, INT32),)},
    "needs 1 blocks for 6 tokens: block table 0 has room for 0": {"block_tables": (np.ones((1, 0), INT32),)},
    "block_tables\\[0\\]\\[0, 0\\]=0: must be 1 to 1": {"block_tables": (np.zeros((1, 4), INT32),)},
    "block_tables\\[0\\]\\[0, 0\\]=2": {"block_tables": (np.full((1, 4), 2, INT32),)},
    "a step of 0 tokens": {"token_ids": np.zeros(0, INT32), "positions": np.zeros(0, INT32)},
    "a step of 9 tokens: must have 1 to 8": {"token_ids": np.zeros(9, INT32)},
}


@pytest.mark.parametrize("message", BAD_STEPS)
def test_a_bad_step_is_refused_by_name_and_changes_nothing(message: str) -> None:
    program = small_program(CpuBackend(2))
    expected = program(good_step()).copy()
    with pytest.raises(ValueError, match=message):
        program(good_step()._replace(**BAD_STEPS[message]))
    np.testing.assert_array_equal(program(good_step()), expected)


def test_a_block_before_the_window_may_be_the_null_block() -> None:
    rng = np.random.default_rng(2)
    backend = CpuBackend(1)
    table = backend.load_embedding(float_tensor(rng.standard_normal((20, 48)).astype(np.float32)))
    arena = arena_of()
    attention = dataclasses.replace(attention_of(), windows=(8,))
    program = backend.compile(
        lambda ops: ops.paged_attention(ops.rope_and_write(ops.embed(table), 0), 0),
        arena=arena,
        attention=attention,
        max_tokens=8,
    )
    step = step_of(1)._replace(
        positions=np.array([15], INT32),
        context_len=np.array([15], INT32),
        block_tables=(np.array([[0, 1]], INT32),),
    )
    assert np.isfinite(program(step)).all()
    with pytest.raises(ValueError, match="\\[0, 0\\]=0"):  # position 14 sees back to 7, in block 0
        program(step._replace(positions=step.positions - 1, context_len=step.context_len - 1))


def test_buffers_are_reused_and_never_while_needed() -> None:
    recorder = Recorder(q_width=16)
    backend = CpuBackend(1)
    vector = backend.load_vector(float_tensor(np.ones(16, np.float32)))
    square = backend.load_linear([float_tensor(np.eye(16, dtype=np.float32))])
    wide = backend.load_linear([float_tensor(np.ones((64, 16), np.float32))])
    narrow = backend.load_linear([float_tensor(np.ones((16, 32), np.float32))])
    table = backend.load_embedding(float_tensor(np.ones((4, 16), np.float32)))
    x = recorder.embed(table)
    for _ in range(5):
        h = recorder.linear(recorder.rms_norm(x, vector, 1e-5), square, x)
        x = recorder.linear(recorder.silu_mul(recorder.linear(h, wide)), narrow, h)
    result = recorder.select(x)
    plan = assign_buffers(recorder.records, result)
    assert plan.buffer_of[result] == OUTPUT
    assert len(plan.widths) <= 3

    holder: dict[int, object] = {}
    for record in recorder.records:
        for value in record.inputs:
            assert holder[plan.buffer_of[value]] is value  # nobody has written over it
        place = plan.buffer_of[record.output]
        assert place == OUTPUT or plan.widths[place] >= record.output.width
        inputs = [plan.buffer_of[v] for v in record.inputs]
        if place in inputs:
            assert record.overwritable is not None
            assert inputs.index(place) == record.overwritable
        holder[place] = record.output


def test_a_value_that_is_read_later_is_not_overwritten() -> None:
    rng = np.random.default_rng(3)
    backend = CpuBackend(2)
    x = rng.standard_normal((5, 16)).astype(np.float32)
    vector = backend.load_vector(float_tensor(np.ones(16, np.float32)))
    eye = backend.load_linear([float_tensor(np.eye(16, dtype=np.float32))])

    def program(ops, v):
        normed = ops.rms_norm(v, vector, 1e-5)
        both = ops.linear(normed, eye, v)
        return ops.linear(ops.linear(normed, eye, both), eye, v)

    normed = run_ops(backend, x, lambda ops, v: ops.rms_norm(v, vector, 1e-5))
    np.testing.assert_array_equal(run_ops(backend, x, program), (normed + (normed + x)) + x)


def test_output_grows_with_the_rows_asked_for() -> None:
    program = small_program(CpuBackend(2))
    for wanted in ([5], [0, 1, 2, 3, 4, 5], [], [2]):
        assert program(good_step()._replace(logit_tokens=np.array(wanted, INT32))).shape == (
            len(wanted),
            16,
        )


def test_a_program_outlives_what_it_was_made_from() -> None:
    program = small_program(CpuBackend(3))
    first = program(good_step()).copy()
    gc.collect()
    np.testing.assert_array_equal(program(good_step()), first)


def test_threads_take_turns() -> None:
    """Programs that share a team may be called from several Python threads at once."""
    backend = CpuBackend(3)
    programs = [small_program(backend) for _ in range(4)]
    expected = [p(good_step()).copy() for p in programs]
    wrong = []

    def work(i: int) -> None:
        for _ in range(200):
            if not np.array_equal(programs[i](good_step()), expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_many_more_threads_than_cores_still_finish() -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((64, 32)).astype(np.float32)
    weight = rng.standard_normal((100, 32)).astype(np.float32)

    def result(threads: int):
        backend = CpuBackend(threads)
        layer = backend.load_linear([float_tensor(weight)])
        return run_ops(backend, x, lambda ops, v: ops.linear(v, layer))

    np.testing.assert_array_equal(result(16), result(1))


def test_a_forked_child_computes_the_same() -> None:
    code = """
import os, sys, warnings
import numpy as np
warnings.simplefilter("ignore")
from test_runtime import small_program, good_step
from octavo.backends.cpu import CpuBackend
program = small_program(CpuBackend(3))
expected = program(good_step()).copy()
child = os.fork()
if child == 0:
    same = all(np.array_equal(program(good_step()), expected) for _ in range(20))
    os._exit(0 if same else 1)
for _ in range(20):
    assert np.array_equal(program(good_step()), expected)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=child_environment())


def child_environment(**extra: str) -> dict[str, str]:
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    return {**os.environ, "PYTHONPATH": path, **extra}


@pytest.mark.parametrize("isa", ISAS)
def test_the_environment_names_the_instruction_set(isa: str) -> None:
    code = "from octavo.backends.cpu import CpuBackend; print(CpuBackend(1).isa)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=child_environment(OCTAVO_ISA=isa),
    )
    assert run.stdout.strip() == isa


# One that there is not, and some that not every machine has.
MISSING = [isa for isa in ("mmx", "avx512_amx", "neon") if isa not in ISAS]


@pytest.mark.parametrize("missing", MISSING)
def test_an_instruction_set_that_is_not_here_is_refused_with_the_choices(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidConfig, match=f"choose one of {', '.join(ISAS)}"):
        CpuBackend(1, isa=missing)
    monkeypatch.setenv("OCTAVO_ISA", missing)
    code = "from octavo.backends.cpu import CpuBackend; CpuBackend(1)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=child_environment()
    )
    assert run.returncode != 0
    last = run.stderr.strip().splitlines()[-1]
    assert f"InvalidConfig: OCTAVO_ISA: instruction set '{missing}'" in last
    assert all(isa in last for isa in ISAS)


def test_defaults() -> None:
    assert 1 <= _native.usable_cores() <= len(os.sched_getaffinity(0))
    assert "generic" in ISAS
    assert CpuBackend().threads == _native.usable_cores()
    limit = max(16, 4 * _native.usable_cores())
    for count in (limit + 1, 100_000, 99_999_999_999, 10**5000):
        with pytest.raises(InvalidConfig, match=f"threads=.*: must be from 1 to {limit}"):
            CpuBackend(count)
    for count in (-1, 0, 4097, 2**31 - 1):
        with pytest.raises(ValueError, match=f"count={count}: a team has from 1 to 4096 workers"):
            _native.Team(count)
    with pytest.raises(InvalidConfig, match="threads=0"):
        CpuBackend(0)
    code = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from octavo import _native
print(_native.usable_cores())
"""
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=child_environment()
    )
    assert run.stdout.strip() == "1"
