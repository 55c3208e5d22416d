"""The plan of `rigdyno fit`, and which option is searched."""

from __future__ import annotations

import pytest

from rigdyno.base.errors import RigdynoError, UsageError
from rigdyno.features.fit.plan import FitRequest, expand_fit, require_sense_of_fit, usual_option
from rigdyno.plan.expand import expand
from rigdyno.plan.options import searched_options
from rigdyno.plan.request import Request, from_flags
from rigdyno.plan.resources import Resources
from rigdyno.schema.system import Accelerator
from support import a_system

GB = 10**9
PLENTY = Resources(available_bytes=100 * GB)


def planned(*updates, resources=PLENTY, system=None, device="cpu", sizes=3, option=None, **fields):
    request = Request(**{"target": "mnist_cnn", "memory_bytes": GB, **fields})
    fit = FitRequest(request=request, updates=updates or ("plain",), sizes=sizes, option=option)
    require_sense_of_fit(fit)
    return expand_fit(fit, system or a_system(), device, resources)


def test_for_each_update_the_largest_and_parts_of_it():
    cells = planned("plain", "dp_fast").cells
    assert [(cell.spec.update, cell.spec.share) for cell in cells] == [
        (update, share) for update in ("plain", "dp_fast") for share in (1.0, 0.5, 0.25)
    ]
    assert all(cell.spec.largest == {"batch_size": GB} for cell in cells)
    assert len({cell.spec.search_key() for cell in cells}) == 2
    assert len({cell.name for cell in cells}) == 6


def test_a_search_is_planned_once_and_an_update_that_loads_kernels_takes_longer():
    largest, half, _, private, *_ = planned("plain", "dp_fast").cells
    assert largest.seconds > 3 * half.seconds
    assert private.seconds > largest.seconds


def test_another_option_than_the_batch():
    cells = planned(target="tensor_add", option="size").cells
    assert cells[0].spec.largest == {"size": GB}


class TestMemory:
    def test_without_one_it_is_the_published_one_that_there_is_room_for(self):
        assert planned(memory_bytes=None).cells[0].spec.largest == {"batch_size": 8 * GB}

    @pytest.mark.parametrize(("has", "filled"), [(17, 16), (24, 16), (43, 40), (80, 40)])
    def test_on_a_card_too(self, has, filled):
        system = a_system(accelerators=(Accelerator(kind="cuda", name="card", memory_bytes=has * GB),))
        plan = planned(memory_bytes=None, system=system, device="cuda", target="mnist_cnn")
        assert plan.cells[0].spec.largest == {"batch_size": filled * GB}

    def test_where_there_is_room_for_none_it_must_be_said(self):
        with pytest.raises(UsageError, match=r"3\.00 GB are free here: say what may be filled with --memory"):
            planned(memory_bytes=None, resources=Resources(available_bytes=3 * GB))

    @pytest.mark.parametrize(("text", "size"), [("epyc7763", 8), ("V100", 16), ("a100", 40), ("0.5GB", 0.5)])
    def test_machines_of_the_document_by_their_names(self, text, size):
        request = from_flags({"target": "mnist_cnn", "memory": text, "set": ("batch_size=largest",)})
        assert request.memory_bytes == size * GB


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"target": "device"}, "device is a suite; `rigdyno fit` takes a workload"),
        ({"target": "mnist_cn"}, "did you mean 'mnist_cnn'"),
        ({"options": {"batch_size": 8}}, "batch_size is what is looked for"),
        ({"sweep": {"batch_size": (8, 16)}}, "batch_size is what is looked for"),
        ({"target": "tensor_add"}, "which option of tensor_add is to be as large as fits.*it has size"),
        ({"target": "tensor_add", "option": "variant"}, "variant must be"),
        ({"target": "mnist_cnn", "option": "batch"}, "no option of mnist_cnn named 'batch'"),
        ({"sizes": 0}, "sizes must be between 1 and 12"),
        ({"launcher": "inline"}, "ends processes that take too much memory"),
    ],
)
def test_what_makes_no_sense(fields, said):
    with pytest.raises(RigdynoError, match=said):
        planned(**fields)


def test_an_unknown_update():
    with pytest.raises(RigdynoError, match="did you mean 'dp_fast'"):
        planned("dp_fats")


STEPS = """
from typing import Literal

def sized(batch: int = 4): ...
def named(mode: str = "small", count=8): ...
def chosen(order: Literal["largest", "smallest"] = "smallest", *, batch=4): ...
def plain(mode="small"): ...
def bare(many): ...
"""


@pytest.fixture
def steps(tmp_path):
    file = tmp_path / "steps.py"
    file.write_text(STEPS)
    return str(file)


class TestYourOwnFunction:
    @pytest.mark.parametrize(
        ("function", "option", "is_searched"),
        [
            ("sized", "batch", True),
            ("named", "mode", False),
            ("named", "count", True),
            ("chosen", "order", False),
            ("chosen", "batch", True),
            ("plain", "mode", False),
            ("bare", "many", True),
        ],
    )
    def test_an_argument_that_is_a_text_keeps_the_word(self, steps, function, option, is_searched):
        request = Request(target=f"{steps}:{function}", options={option: "largest"}, memory_bytes=GB)
        assert searched_options(request) == ([option] if is_searched else [])
        if is_searched:
            [cell] = expand(request, a_system(), "cpu", PLENTY).cells
            assert cell.spec.largest == {option: GB}

    def test_a_text_beside_a_number_that_is_searched(self, steps):
        options = {"order": "largest", "batch": "largest"}
        [cell] = expand(
            Request(target=f"{steps}:chosen", options=options, memory_bytes=GB), a_system(), "cpu", PLENTY
        ).cells
        assert cell.spec.largest == {"batch": GB}
        assert cell.spec.options == {"order": "largest"}

    def test_the_batch_is_found_by_its_name(self, steps):
        assert usual_option(f"{steps}:sized", "plain") == "batch"
        with pytest.raises(UsageError, match="name it with --option; it has count"):
            usual_option(f"{steps}:named", "plain")
