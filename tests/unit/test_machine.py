import pytest

from octavo.engine import machine

MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000 kB\nMemAvailable:    8000000 kB\n"


@pytest.fixture
def group(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text(MEMINFO)
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    return tmp_path


def test_without_a_limit_the_machine_decides(group):
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("5000\n")
    assert machine.total_memory() == 16_000_000 * 1024
    assert machine.available_memory() == 8_000_000 * 1024


def test_a_control_group_limits(group):
    (group / "memory.max").write_text("1000000\n")
    (group / "memory.current").write_text("400000\n")
    assert machine.total_memory() == 1_000_000
    assert machine.available_memory() == 600_000
    (group / "memory.current").write_text("1200000\n")
    assert machine.available_memory() == 0


def test_this_machine():
    assert 0 < machine.available_memory() <= machine.total_memory()
