"""A request becomes cells: their order, options, refusals and names."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rigdyno import catalogue
from rigdyno.base.errors import BadValue, UnknownName, UsageError
from rigdyno.contracts import Unavailable, Wanted
from rigdyno.plan import cells
from rigdyno.plan.budget import fit_into_budget, is_too_short, with_needs
from rigdyno.plan.build import build_entry, convert_option
from rigdyno.plan.cells import _make_slug
from rigdyno.plan.expand import expand, plan_name
from rigdyno.plan.request import Request
from rigdyno.plan.resources import Resources, disk_bytes, free_disk_bytes, read_resources, what_would_fit
from rigdyno.schema.spec import Budget, RunSpec
from rigdyno.schema.system import Accelerator, Limits
from rigdyno.workloads.tensor_add import TensorAdd
from support import a_system

PLENTY = Resources(available_bytes=10**12)
CARD = Accelerator(kind="cuda", name="Some GPU", memory_bytes=8 * 10**9)


def expanded(system=None, resources=PLENTY, device="cpu", **fields):
    return expand(Request(**{"target": "tensor_add", **fields}), system or a_system(), device, resources)


def options_of(plan):
    return [cell.spec.options for cell in plan.cells]


def test_a_sweep_is_the_product_of_its_values():
    plan = expanded(sweep={"size": (1, 2), "variant": ("corrected", "as_intended")})
    assert options_of(plan) == [
        {"size": 1, "variant": "corrected"},
        {"size": 1, "variant": "as_intended"},
        {"size": 2, "variant": "corrected"},
        {"size": 2, "variant": "as_intended"},
    ]


def test_repeats_go_round_by_round():
    plan = expanded(sweep={"size": (1, 2)}, repeat=3)
    assert [(cell.spec.options["size"], cell.repeat) for cell in plan.cells] == [
        (1, 1), (2, 1), (1, 2), (2, 2), (1, 3), (2, 3),
    ]  # fmt: skip
    assert [cell.name for cell in plan.cells][2:4] == ["03-tensor_add-1-r2", "04-tensor_add-2-r2"]


def test_repeats_of_a_suite_go_round_by_round_where_only_some_repeat():
    plan = expanded(target="device", repeat=2)
    assert [cell.repeat for cell in plan.cells] == [1] * 10 + [2] * 4
    assert {cell.spec.workload for cell in plan.cells if cell.repeat == 2} == {"memory_bandwidth", "tensor_add"}
    assert not any(cell.spare for cell in plan.cells)  # as many as were asked for
    assert plan.suite == "device"


def test_text_is_converted_to_the_type_of_the_option():
    plan = expanded(options={"size": "64", "variant": "corrected"}, text_keys=("size", "variant"))
    assert options_of(plan) == [{"size": 64, "variant": "corrected"}]


@pytest.mark.parametrize("value", ["64", 64.5, "x", True])
def test_without_text_the_type_must_fit(value):
    with pytest.raises(BadValue, match="size must be a whole number"):
        expanded(options={"size": value})


def test_types_are_converted_from_text():
    assert convert_option("12", int, "n", text=True) == 12
    assert convert_option("0.5", float, "x", text=True) == 0.5
    assert convert_option("true", bool, "b", text=True) is True
    assert convert_option(3, float, "x") == 3.0
    for value, wanted, says in (
        ("x", int, "a whole number"),
        ("x", float, "a number"),
        ("maybe", bool, "true or false"),
    ):
        with pytest.raises(BadValue, match=f"n must be {says}, not '{value}'"):
            convert_option(value, wanted, "n", text=True)
    with pytest.raises(BadValue, match="n must be text, not 5"):
        convert_option(5, str, "n")


def test_an_unknown_option_is_refused():
    with pytest.raises(UnknownName, match="no option of tensor_add named 'sise'; did you mean 'size'"):
        build_entry(TensorAdd, "tensor_add", {"sise": 1})


def test_a_suite_hands_options_to_the_workloads_that_have_them():
    plan = expanded(target="quick", options={"size": "64"}, text_keys=("size",), threads=1, seed=5, launcher="inline")
    sizes = {(cell.spec.workload, cell.spec.options.get("size")) for cell in plan.cells}
    assert ("tensor_add", 64) in sizes
    assert ("memory_bandwidth", None) in sizes
    assert {(cell.spec.threads, cell.spec.seed, cell.spec.launcher) for cell in plan.cells} == {(1, 5, "inline")}


def test_a_soak_ends_with_the_clock():
    (cell,) = expanded(soak_seconds=600.0).cells
    assert cell.spec.budget == Budget(seconds=600.0, stop="clock")


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("", "name what to run"),
        ("train.py", "which function of train.py? try train.py:step"),
        ("tensor_ad", "no suite or workload named 'tensor_ad'; did you mean 'tensor_add'?"),
        ("_function", "no suite or workload named '_function'"),
        ("../workloads/tensor_add", "no suite or workload named"),
    ],
)
def test_unknown_targets_are_refused(target, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        expanded(target=target)


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("cuda", "no cuda device here; try --device cpu"),
        ("gpu", "no gpu device here"),
        ("mps:0", "no mps device here"),
    ],
)
def test_a_missing_device_is_refused(device, says):
    with pytest.raises(BadValue, match=f"tensor_add: {says}"):
        expanded(device=device)


@pytest.mark.parametrize("device", ["cuda:1", "cuda:-1", "cuda:x", "cuda:²"])
def test_a_missing_gpu_number_is_refused(device):
    with pytest.raises(BadValue, match=f"no device {device}: there are 1, counted from 0"):
        expanded(a_system(accelerators=(CARD,)), device=device)


@pytest.mark.parametrize(("kind", "device"), [("cuda", "cuda"), ("cuda", "cuda:0"), ("rocm", "cuda"), ("xpu", "xpu")])
def test_an_existing_gpu_number_is_accepted(kind, device):
    card = Accelerator(kind=kind, name="card")
    (cell,) = expanded(a_system(accelerators=(card,)), device=device).cells
    assert cell.refusal is None
    assert cell.spec.device == device


def test_a_refused_cell_is_kept_with_its_reason():
    plan = expanded(sweep={"size": (64, 10**6)}, resources=Resources(available_bytes=10**9))
    assert [cell.refusal is None for cell in plan.cells] == [True, False]
    assert plan.cells[1].refusal.startswith("needs 12.0 TB of memory, 1.00 GB are free; size=")
    assert plan.runnable == plan.cells[:1]
    assert plan.seconds == plan.cells[0].seconds


def test_a_suite_keeps_all_its_refusals():
    plan = expanded(target="quick", resources=Resources(available_bytes=1000))
    assert all(cell.refusal for cell in plan.cells)


def test_what_would_fit_is_the_largest_that_does():
    workload = TensorAdd(size=100_000)
    resources = Resources(available_bytes=TensorAdd(size=5000).memory_bytes(a_system()))
    assert what_would_fit(workload, a_system(), resources) == "size=5000 would fit"
    one_less = Resources(available_bytes=resources.available_bytes - 1)
    assert what_would_fit(workload, a_system(), one_less) == "size=4999 would fit"
    assert what_would_fit(workload, a_system(), Resources(available_bytes=10)) is None
    assert what_would_fit(object(), a_system(), resources) is None


def test_a_size_that_does_not_fit_says_what_would():
    with pytest.raises(BadValue, match=r"tensor_add: needs 12\.0 TB of memory, 8\.00 GB are free; size=\d+ would fit"):
        expanded(options={"size": 10**6}, resources=Resources(available_bytes=8 * 10**9))


def test_free_memory_and_disk_are_read(tmp_path, monkeypatch):
    assert Resources(available_bytes=5).refusal(None) is None
    assert Resources(available_bytes=5).refusal(5) is None
    assert Resources(available_bytes=-5).refusal(6) == "needs 6.00 B of memory, 0 B are free"
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 7_000})())
    assert read_resources(a_system(memory_bytes=10_000)).available_bytes == 6_500
    assert read_resources(a_system(memory_bytes=10_000, limits=Limits(memory_bytes=3_000))).available_bytes == 3_000
    assert disk_bytes(10.0, 3) == 400_000 + 90_000
    assert free_disk_bytes(tmp_path / "not" / "yet") > 0


def test_a_missing_extra_is_named(monkeypatch):
    lacking = Unavailable("torch is not installed", "pip install torch")
    monkeypatch.setattr(catalogue, "find_missing", lambda _requirements: lacking)
    with pytest.raises(BadValue, match="can't run: torch is not installed; try pip install torch"):
        expanded()


def wanted(seconds, repeat=1):
    return Wanted(RunSpec(workload="tensor_add", options={"size": 1}, budget=Budget(seconds=seconds)), repeat)


START = TensorAdd(size=1).start_seconds()


def test_a_budget_scales_all_cells_by_one_factor():
    """Two cells of 6 s and one of 3 s twice: 18 s asked. Half of that, and four starts, is the budget."""
    cells = fit_into_budget([wanted(6), wanted(6), wanted(3, repeat=2)], 9 + 4 * START)
    assert [(cell.spec.budget.seconds, cell.repeat) for cell in cells] == [(3, 1), (3, 1), (1.5, 2)]


def test_a_larger_budget_lengthens():
    (cell,) = fit_into_budget([wanted(6)], 60 + START)
    assert cell.spec.budget.seconds == 60


def test_repeats_are_given_up_before_a_cell_becomes_too_short():
    """Five repeats in 4 s would leave less than a second each."""
    (cell,) = fit_into_budget([wanted(6, repeat=5)], 4 + START)
    assert (cell.spec.budget.seconds, cell.repeat) == (4, 1)


def test_repeats_are_given_up_one_by_one():
    (cell,) = fit_into_budget([wanted(6, repeat=5)], 3 * (1.2 + START))
    assert (cell.spec.budget.seconds, cell.repeat) == (1.2, 3)


def test_two_processes_are_never_what_is_left():
    """Their interval would say nothing: one is as good, and takes half of the time."""
    (cell,) = fit_into_budget([wanted(6, repeat=5)], 2.5 * (1.2 + START))
    assert cell.repeat == 1


def slow(seconds, repeat=1, most=1):
    """About two thirds of a second a step."""
    spec = RunSpec(workload="tensor_add", options={"variant": "as_intended"}, budget=Budget(seconds=seconds))
    return Wanted(spec, repeat, most)


SLOW = TensorAdd(variant="as_intended")
NEEDED = 15 * SLOW.step_seconds("cpu")


def test_every_cell_gets_what_a_verdict_needs_before_others_get_what_they_asked_for():
    cells = fit_into_budget([wanted(20), slow(2)], START + SLOW.start_seconds() + NEEDED + 5)
    assert [cell.spec.budget.seconds for cell in cells] == pytest.approx([5, NEEDED], abs=0.02)
    assert not any(is_too_short(cell.spec) for cell in cells)


def test_the_dearest_gives_up_its_repeats_first():
    budget = 3 * (START + 1) + SLOW.start_seconds() + NEEDED + 1
    cells = fit_into_budget([wanted(3, repeat=3), slow(3, repeat=3)], budget)
    assert [cell.repeat for cell in cells] == [3, 1]


def test_without_a_budget_there_is_what_a_verdict_needs():
    assert [cell.spec.budget.seconds for cell in with_needs([wanted(6), slow(2)])] == pytest.approx([6, NEEDED])


def test_what_a_budget_leaves_over_is_for_spare_processes():
    plan = expanded(target="device", budget_seconds=600.0)
    spare = [cell for cell in plan.cells if cell.spare]
    assert {cell.spec.workload for cell in spare} >= {"tensor_add", "matmul_peak"}
    assert min(cell.repeat for cell in spare) == 2
    assert plan.spare_seconds > 200
    assert plan.seconds == pytest.approx(600, abs=1)
    assert plan.foreseen is None
    assert expanded(target="tensor_add", budget_seconds=60.0).spare_seconds == 0


def test_what_will_be_suspect_is_said_beforehand_with_what_would_settle_it():
    plan = expanded(target="device", budget_seconds=60.0)
    assert "these will be SUSPECT: " in plan.foreseen
    assert "tensor_add as_intended" in plan.foreseen
    settling = float(re.search(r"--budget (\d+)s", plan.foreseen)[1])
    assert 60 < settling < 120
    assert expanded(target="device", budget_seconds=settling).foreseen is None


def test_where_not_all_fits_only_the_neediest_goes_without():
    budget = 2 * START + SLOW.start_seconds() + 3 * 1.0 + 2
    cells = fit_into_budget([wanted(2), slow(2), wanted(2)], budget)
    assert [is_too_short(cell.spec) for cell in cells] == [False, True, False]


@pytest.mark.parametrize(
    "asked",
    [
        {"target": "device", "budget_seconds": 75.0},
        {"target": "tensor_add", "options": {"variant": "as_intended"}, "repeat": 3, "budget_seconds": 20.0},
        {"target": "scaling", "full": True, "ranks": 2, "budget_seconds": 300.0},
    ],
)
def test_the_recommended_budget_is_sufficient(asked):
    plan = expanded(**asked)
    settling = float(re.search(r"--budget (\d+)s", plan.foreseen)[1])
    assert expanded(**{**asked, "budget_seconds": settling}).foreseen is None


def test_pairs_for_the_noise_never_take_what_verdicts_need():
    plan = expanded(target="scaling", full=True, ranks=2, budget_seconds=850.0)
    assert plan.foreseen is None
    assert plan.duel is None


def test_the_noise_takes_a_tenth_of_what_will_run():
    plan = expanded(target="device")
    pairs = sum(cell.seconds for cell in plan.cells if cell.pair is not None)
    assert pairs <= 0.11 * plan.seconds


def test_repeats_that_were_asked_for_are_kept_or_refused():
    with pytest.raises(BadValue, match="too short"):
        fit_into_budget([wanted(6, repeat=5)], 4 + START, keep_repeats=True)
    with pytest.raises(BadValue, match="too short"):
        expanded(repeat=5, budget_seconds=4.0 + START)


def test_a_number_of_steps_limits_workloads_and_suites():
    assert expanded(steps=7).cells[0].spec.budget.max_steps == 7
    suite = [cell for cell in expanded(target="device", steps=7).cells if cell.pair is None]
    assert {cell.spec.budget.max_steps for cell in suite} == {7}
    assert expanded(steps=7, budget_seconds=60.0).cells[0].spec.budget.max_steps == 7


def test_full_is_for_suites():
    with pytest.raises(UsageError, match="--full is for suites"):
        expanded(full=True)


def test_a_soak_can_be_repeated():
    assert len(expanded(target="device", soak_seconds=30.0, repeat=2).cells) == 2


def test_a_budget_that_nothing_fits_says_the_least():
    with pytest.raises(BadValue, match=r"a budget of 2\.0 s is too short: this takes at least"):
        fit_into_budget([wanted(6), wanted(6)], 2)


def test_a_users_function_gets_what_looks_like_a_number(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("def step(**anything): pass\n")
    given_options = {"a": "1", "b": "0.5", "c": "true", "d": "text", "e": "1e3"}
    plan = expanded(target=f"{file}:step", options=given_options, text_keys=tuple(given_options))
    assert options_of(plan) == [{"a": 1, "b": 0.5, "c": True, "d": "text", "e": 1000.0}]
    assert (plan.name, plan.cells[0].name.startswith("01-train.step-1-0.5-True-text")) == ("train_step", True)
    kept = expanded(target=f"{file}:step", options={"a": "1"})
    assert options_of(kept) == [{"a": "1"}]


@pytest.mark.parametrize("value", ["nan", "inf", "-infinity", "\udcff"])
def test_what_a_record_could_not_hold_is_refused(tmp_path, value):
    file = tmp_path / "train.py"
    file.write_text("def step(a): pass\n")
    with pytest.raises(BadValue, match="a must be"):
        expanded(target=f"{file}:step", options={"a": value}, text_keys=("a",))


@settings(max_examples=50)
@given(file=st.text(max_size=20), function=st.text(max_size=90), value=st.text(max_size=20))
def test_plan_names_are_valid_folder_names(file, function, value):
    """Whatever a user calls a file, a function or an option's value."""
    target = f"{file}.py:{function}"
    cell = f"01-{_make_slug(RunSpec(workload=target, options={'x': value}))}"
    for name in (cell, plan_name(target)):
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,90}", name)
        assert Path(name).name == name
    assert plan_name(target) not in (".", "..")


def test_names_of_more_than_a_hundred_cells_sort_in_the_order_they_run_in():
    request = Request(target="tensor_add", sweep={"size": tuple(range(1, 121))})
    names = [cell.name for cell in expand(request, a_system(), "cpu", PLENTY).cells]
    assert names == sorted(names)
    assert names[0].startswith("001-")


@pytest.mark.parametrize("kind", ["update", "arrangement"])
def test_a_suite_chooses_its_own_parts(kind, monkeypatch):
    """An option that would be passed over in silence is refused."""
    monkeypatch.setattr("rigdyno.plan.expand.require_parts", lambda request: None)
    with pytest.raises(UsageError, match=f"chooses its own {kind}"):
        expand(Request(target="device", **{kind: "another"}), a_system(), "cpu", PLENTY)


@pytest.mark.parametrize("asked", [{"full": True}, {"soak_seconds": 60.0}])
def test_the_first_minute_is_neither_full_nor_a_soak(asked):
    with pytest.raises(UsageError, match="rigdyno run device"):
        expand(Request(target="quick", **asked), a_system(), "cpu", PLENTY)


class TestRanks:
    def test_several_ranks_are_ddp_by_torchrun_with_a_share_of_the_cores_each(self):
        [cell] = expanded(target="resnet50", ranks=2).cells
        spec = cell.spec
        assert (spec.arrangement, spec.launcher, spec.world_size, spec.pinned) == ("ddp", "torchrun", 2, True)
        assert spec.threads == max(1, a_system().cpu.usable_cores // 2)
        [alone] = expanded(target="resnet50").cells
        assert (alone.spec.arrangement, alone.spec.launcher, alone.spec.threads) == ("single", "process", None)
        assert cell.memory_bytes == 2 * alone.memory_bytes

    def test_an_arrangement_of_several_ranks_takes_all_that_fit(self):
        [cell] = expanded(target="allreduce").cells
        assert (cell.spec.arrangement, cell.spec.world_size) == ("ddp", a_system().cpu.usable_cores)

    def test_ranks_are_counted_for_each_node_and_so_is_memory(self):
        plan = expanded(target="resnet50", ranks=2, nodes=3, rendezvous="a:1")
        [cell] = plan.cells
        assert (cell.spec.world_size, cell.spec.nodes, cell.spec.launcher) == (6, 3, "by_hand")
        assert plan.reach.rendezvous == "a:1"
        assert [(each.id, each.node) for each in cell.participants] == [
            ("rank0", 0), ("rank1", 0), ("rank2", 1), ("rank3", 1), ("rank4", 2), ("rank5", 2),
            ("node0", 0), ("node1", 1), ("node2", 2),
        ]  # fmt: skip
        [here] = expanded(target="resnet50", ranks=2).cells
        assert cell.memory_bytes == here.memory_bytes

    def test_the_scaling_suite_goes_from_one_rank_to_all_nodes(self):
        found = expanded(target="scaling", ranks=2, nodes=3, rendezvous="a:1").cells
        sizes = {
            (cell.spec.workload, cell.spec.world_size, cell.spec.nodes): cell.spec.launcher
            for cell in found
            if cell.pair is None
        }
        assert sizes == {
            ("resnet50", 1, 1): "process",
            ("resnet50", 2, 1): "torchrun",
            ("resnet50", 4, 2): "by_hand",
            ("resnet50", 6, 3): "by_hand",
            ("allreduce", 6, 3): "by_hand",
        }

    def test_a_trap_that_doctor_finds_is_a_refusal_with_its_reason(self, monkeypatch):
        monkeypatch.setattr(cells, "trap_of", lambda name: f"multiplying matrices in {name} dies of SIGILL")
        with pytest.raises(BadValue, match="multiplying matrices in bf16 dies of SIGILL"):
            expanded(target="resnet50", options={"precision": "bf16"})
        assert expanded(target="resnet50", options={"precision": "fp32"}).cells


class TestLaunchers:
    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"launcher": "by_hand"}, "is for several nodes"),
            ({"launcher": "ssh", "nodes": 2, "rendezvous": "a:1"}, "add --hosts"),
            ({"launcher": "torchrun", "nodes": 2, "rendezvous": "a:1"}, "on this machine alone"),
            ({"launcher": "inline", "ranks": 2}, "starts one process, not 2"),
            ({"launcher": "by_hand", "hosts": ("a", "b"), "nodes": 2}, "leave out --launcher by_hand"),
            ({"launcher": "slurm", "ranks": 1}, "add --threads"),
        ],
    )
    def test_a_launcher_that_can_not_start_the_cell_is_refused(self, fields, words):
        with pytest.raises(UsageError) as refusal:
            expanded(target="resnet50", **fields)
        assert words in str(refusal.value)

    def test_what_runs_elsewhere_is_not_judged_by_this_machine(self):
        plan = expanded(target="resnet50", launcher="slurm", ranks=4, nodes=2, device="cuda", slurm={"gres": "gpu:4"})
        [cell] = plan.cells
        assert cell.refusal is None
        assert (cell.spec.launcher, cell.spec.world_size, cell.spec.nodes) == ("slurm", 8, 2)
        assert [each.device for each in cell.participants[:5]] == ["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:0"]
        assert plan.reach.slurm == {"gres": "gpu:4"}

    def test_every_option_is_planned_with_its_value(self):
        [cell] = expanded(target="mnist_cnn", options={"batch_size": 8}).cells
        assert cell.spec.options == {"batch_size": 8}
        assert cell.spec.resolved == {"batch_size": 8, "learning_rate": 0.01, "momentum": 0.5, "data": ""}


class TestAsLargeAsFits:
    def test_the_rule_is_in_the_configuration_and_no_value(self):
        [cell] = expanded(target="mnist_cnn", options={"batch_size": "largest"}, memory_bytes=2 * 10**9).cells
        assert cell.spec.largest == {"batch_size": 2 * 10**9}
        assert "batch_size" not in cell.spec.options
        assert cell.memory_bytes == 2 * 10**9
        assert cell.name == "01-mnist_cnn-largest"

    def test_a_search_is_combined_with_a_sweep_of_other_options(self):
        plan = expanded(
            target="mnist_cnn",
            options={"batch_size": "largest"},
            sweep={"learning_rate": (0.1, 0.2)},
            memory_bytes=2 * 10**9,
        )
        assert [cell.spec.options for cell in plan.cells] == [{"learning_rate": 0.1}, {"learning_rate": 0.2}]

    @pytest.mark.parametrize(
        ("fields", "said", "key"),
        [
            (
                {"options": {"size": "largest"}},
                "size=largest needs a memory limit; add --memory",
                "set.size",
            ),
            ({"memory_bytes": 10**9}, "--memory limits an option set to 'largest'", "memory"),
            ({"options": {"variant": "largest"}, "memory_bytes": 10**9}, "variant must be one of", "set.variant"),
        ],
    )
    def test_a_search_that_makes_no_sense_is_refused(self, fields, said, key):
        with pytest.raises(UsageError, match=re.escape(said)) as caught:
            expanded(**fields)
        assert caught.value.key == key

    def test_more_memory_than_is_free_is_refused(self):
        with pytest.raises(BadValue, match=r"needs 2\.00 GB of memory, 1\.00 GB are free"):
            expanded(resources=Resources(available_bytes=10**9), options={"size": "largest"}, memory_bytes=2 * 10**9)
