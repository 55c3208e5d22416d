"""Tests of tensor_add at a small size: the result of each variant, and the bytes that it counts."""

import math

import pytest
import torch

from rigdyno.base.errors import BadValue
from rigdyno.contracts import CannotRun, WorkerPlace
from rigdyno.workloads import tensor_add
from rigdyno.workloads.tensor_add import TensorAdd

SIZE = 64
TENSOR_BYTES = 64 * 64 * 4
VARIANTS = ("as_published", "as_intended", "corrected")


def built(variant):
    return TensorAdd(size=SIZE, variant=variant).build(WorkerPlace(device="cpu"))


def test_the_published_function_returns_the_very_same_tensor_every_time():
    foo = tensor_add._script_function(SIZE, "cpu")
    tensors = [foo() for _ in range(10)]
    assert len({tensor.data_ptr() for tensor in tensors}) == 1


def test_the_published_loop_adds_a_tensor_to_itself_until_it_is_inf():
    foo = tensor_add._script_function(SIZE, "cpu")
    z0, seen = foo(), []
    for _ in range(127):
        z0 += foo()
        seen.append(z0[0, 0].item())
    assert seen[:3] == [4.0, 8.0, 16.0]
    assert seen[125] == 2.0**127
    assert math.isinf(seen[126])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("count", [1, 2, 126, 127, 200])
def test_the_check_passes_after_any_number_of_steps(variant, count):
    steps = built(variant)
    for _ in range(count):
        assert steps.kinds["step"]() is None
    assert steps.check() is True


def test_the_check_detects_a_wrong_sum(monkeypatch):
    steps = built("corrected")
    monkeypatch.setattr(torch, "add", lambda x, y, out: out.fill_(3.0))
    steps.kinds["step"]()
    assert steps.check() is False


@pytest.mark.parametrize(
    ("variant", "tensors_moved"),
    [
        ("as_published", 1 + 1),  # z0 read and written in place
        ("as_intended", 2 + 3 + 3),  # two fills, x + y, z0 += z
        ("corrected", 2 + 1),
    ],
)
def test_bytes_per_iteration_match_a_count_by_hand(variant, tensors_moved):
    assert built(variant).per_item == {"byte": tensors_moved * TENSOR_BYTES}


def test_the_notes_state_what_was_counted():
    assert built("corrected").notes == ("bytes counted per iteration: 2 reads and 1 write of a tensor of 16.4 kB",)
    assert "1 read and 1 write" in built("as_published").notes[0]


def test_traffic_on_an_accelerator_includes_copies_from_the_host():
    assert tensor_add._count_traffic("as_intended", "cuda:0") == (6, 6)
    assert tensor_add._count_traffic("corrected", "cuda:0") == (2, 1)


def test_a_function_that_is_not_folded_skips_the_cell(monkeypatch):
    monkeypatch.setattr(tensor_add, "_script_function", lambda size, device: lambda: torch.ones(size, size))
    with pytest.raises(CannotRun, match="doesn't fold"):
        built("as_published")


def test_a_torch_without_scripting_skips_the_cell(monkeypatch):
    monkeypatch.delattr(torch.jit, "CompilationUnit")
    with pytest.raises(CannotRun, match="doesn't script the published function"):
        built("as_published")


def test_memory_is_three_or_four_tensors():
    tensor = 12288 * 12288 * 4
    needed = {variant: TensorAdd(variant=variant).memory_bytes(None) for variant in VARIANTS}
    assert needed["as_published"] == needed["corrected"] == 300_000_000 + 3 * tensor
    assert needed["as_intended"] == 300_000_000 + 4 * tensor


@pytest.mark.parametrize("size", [0, -1, True, 2.5, "64"])
def test_a_bad_size_is_refused(size):
    with pytest.raises(BadValue, match="size must be a whole number of at least 1"):
        TensorAdd(size=size)


def test_a_bad_variant_gets_a_suggestion():
    with pytest.raises(BadValue, match=r"variant must be one of .*, not 'as_publishd'; did you mean 'as_published'\?"):
        TensorAdd(variant="as_publishd")
