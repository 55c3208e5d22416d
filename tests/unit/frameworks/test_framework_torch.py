"""Tests of the torch framework with the real torch of this machine."""

import pytest
import torch

from rigdyno.frameworks.torch import Torch
from rigdyno.plan.build import framework_of, function_workload
from rigdyno.runner.device import usable_cores, with_frameworks
from rigdyno.runner.worker import failure
from rigdyno.schema.system import Environment


def test_the_same_seed_gives_the_same_numbers(one_thread):
    drawn = []
    for seed in (5, 5, 6):
        Torch().prepare(seed, threads=None)
        drawn.append(torch.rand(3).tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_threads_are_set_and_reported(one_thread):
    Torch().prepare(seed=0, threads=2 if usable_cores() > 1 else 1)
    assert Torch().threads() == torch.get_num_threads() == min(2, usable_cores())
    Torch().prepare(seed=0, threads=None)
    assert torch.get_num_threads() == min(2, usable_cores())


def test_a_users_own_step_gets_torch(tmp_path):
    (tmp_path / "own.py").write_text("def step(): pass")
    assert framework_of(function_workload(f"{tmp_path}/own.py:step", {})) == Torch()


def test_the_environment_contains_versions_and_threads():
    known = with_frameworks(Environment(python="3.11"), [Torch()])
    assert known.framework["torch"] == torch.__version__
    assert known.threads == torch.get_num_threads()
    assert with_frameworks(Environment(python="3.11"), []) == Environment(python="3.11")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("whatever it says"),
        RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: not enough memory: you tried ..."),
    ],
)
def test_out_of_memory_errors_are_recognised(error):
    assert Torch().is_out_of_memory(error)
    assert failure(error, "measure").kind == "out_of_memory"


def test_a_real_failed_allocation_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert Torch().is_out_of_memory(caught.value)


def test_other_errors_are_not_out_of_memory():
    assert not Torch().is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert failure(RuntimeError("no such index"), "measure").kind == "exception"
