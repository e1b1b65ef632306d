"""What benchmarks measure with: the probes of the machine, and the times of a tape's operations."""

import numpy as np
import pytest

from octavo import _native
from octavo.backends.cpu import CpuBackend
from octavo.bench.ceilings import ARITHMETICS, Meter, filled
from octavo.bench.parts.kernel_case import compile_ops, plain_step

# Multiplications and additions of one instruction on all 16 lanes: one product per lane, two, or four.
LANE_OPERATIONS = {"float32": 32, "bfloat16": 64, "int8": 128}


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_multiply_counts_what_it_did(isa, arithmetic):
    one, two = _native.Team(1), _native.Team(2)
    operations, seconds = _native.multiply(one, isa, arithmetic, 10)
    assert operations > 0
    assert operations % (10 * LANE_OPERATIONS[arithmetic]) == 0
    assert seconds > 0
    assert _native.multiply(one, isa, arithmetic, 30)[0] == 3 * operations
    assert _native.multiply(two, isa, arithmetic, 10)[0] == 2 * operations
    assert _native.multiply(one, isa, arithmetic, 0)[0] == 0


def test_multiply_refuses_unknown_names():
    team = _native.Team(1)
    with pytest.raises(ValueError, match=r"float16.*float32, bfloat16 or int8"):
        _native.multiply(team, _native.isa(), "float16", 1)
    with pytest.raises(ValueError, match="sse9"):
        _native.multiply(team, "sse9", "int8", 1)


@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.parametrize("num_bytes", [0, 1, 255, 256, 65536, 65537, 200_000])
def test_reading_takes_time_and_stays_inside(isa, num_bytes, is_private):
    data = np.ones(num_bytes, np.uint8)
    for threads in (1, 3):
        assert _native.read_memory(_native.Team(threads), isa, data, 2, is_private) > 0


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_loops_without_work(threads):
    team = _native.Team(threads)
    assert _native.run_empty_loops(team, 100) > 0
    assert _native.run_empty_loops(team, 0) >= 0


def test_filled_memory_has_no_two_equal_pages():
    data = filled(4 << 20)
    assert len(data) == 4 << 20
    assert len(np.unique(data.reshape(-1, 4096), axis=0)) == 1024


def test_the_meter_measures_everything():
    meter = Meter(CpuBackend(2), max_working_set=8 << 20)
    ceilings = meter.measure(repeats=1)
    rates = [*(r.bytes_per_s for r in ceilings.reads), *(ceilings.peak(a) for a in ARITHMETICS)]
    assert min(rates) > 0
    assert ceilings.loop_s > 0
    assert ceilings.peak("bfloat16") >= max(ceilings.bfloat16_per_s, ceilings.float32_per_s)
    assert [r.working_set_bytes for r in ceilings.reads] == sorted(
        r.working_set_bytes for r in ceilings.reads
    )
    found = ceilings.as_dict()
    assert set(found) == {"read", "int8_gop_s", "bfloat16_gflop_s", "float32_gflop_s", "loop_us"}
    assert set(found["read"][0]) == {"level", "working_set_bytes", "gb_s"}
    assert meter.machine.threads == 2
    assert meter.machine.cpu
    for working_set in (4096, 100_000, 8 << 20, 1 << 40):
        assert meter.read(working_set) > 0
    machine = meter.machine
    assert meter.level_of(machine.l2_bytes) == "L2"
    assert meter.level_of(machine.l3_bytes) == "DRAM"
    assert meter.level_of(meter.beyond_caches_bytes) == "DRAM"


@pytest.mark.parametrize("threads", [1, 2])
def test_the_tape_times_its_operations(isa, threads):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 64), np.float32)
    backend = CpuBackend(threads, isa=isa)
    program = compile_ops(backend, x, lambda ops, v: ops.silu_mul(ops.silu_mul(v)))
    assert program.op_names == ["embed", "silu_mul", "silu_mul"]
    step = plain_step(len(x))
    expected = program(step).copy()
    seconds = np.full(3, np.nan)
    assert np.array_equal(program(step, seconds), expected)
    assert np.all(seconds > 0)
    with pytest.raises(ValueError, match="3 operations"):
        program(step, np.zeros(2))
