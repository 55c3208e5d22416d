"""From two requests to pairs of cells: arms, names, how many pairs fit, and what is refused."""

import math
from pathlib import Path

import pytest

from rigdyno.base.errors import BadValue, UnknownName, UsageError
from rigdyno.commands.duel import duel_request
from rigdyno.features.duel.plan import (
    DEFAULT_SECONDS,
    FEWEST_PAIRS,
    LEAST_PAIRS,
    MOST_PAIRS,
    DuelRequest,
    arm_request,
    expand_duel,
)
from rigdyno.plan.expand import require_sense
from rigdyno.plan.pairs import LEAST_MEASURED_SECONDS, MOST_MEASURED_SECONDS, START_TOGETHER, names_of
from rigdyno.plan.request import Request, from_toml
from rigdyno.plan.resources import Resources
from rigdyno.schema.spec import RunSpec
from rigdyno.workloads.tensor_add import TensorAdd
from support import a_system

PLENTY = Resources(available_bytes=10**12)
SMALL = Request(target="tensor_add", options={"size": 64})
FLAGS = {"budget": "2m", "margin": "1%"}


def planned(a=SMALL, b=SMALL, resources=PLENTY, **fields):
    return expand_duel(DuelRequest(a=a, b=b, **fields), a_system(), "cpu", resources)


def with_settings(*settings, of=SMALL, flag="--b"):
    """Return the request as the command line makes it."""
    return arm_request(of, dict(setting.split("=", 1) for setting in settings), flag, text=True)


def asked(target="tensor_add", other=None, **flags):
    return duel_request(target, other or target, {**FLAGS, **flags})


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("def old(width=1):\n    return width\n\n\ndef new(width=1):\n    return width\n")
    return tmp_path


class TestArms:
    def test_an_arm_has_what_both_have_and_its_own(self):
        common = Request(target="tensor_add", options={"size": 64, "variant": "corrected"}, threads=2, seed=7)
        arm = with_settings("variant=as_published", "threads=1", of=common)
        assert arm.options == {"size": 64, "variant": "as_published"}
        assert (arm.threads, arm.seed) == (1, 7)
        assert common.options["variant"] == "corrected"

    def test_the_types_of_options_and_of_an_arms_own_keys(self):
        arm = with_settings("size=128", "threads=3", "seed=5", "device=cpu", "update=plain", "arrangement=single")
        plan = planned(b=arm)
        spec = plan.cells[1].spec
        assert spec.options == {"size": 128}
        assert (spec.threads, spec.seed, spec.device) == (3, 5, "cpu")

    def test_from_python_a_number_is_a_number(self):
        arm = arm_request(SMALL, {"size": 128, "threads": 3}, "b")
        assert planned(b=arm).cells[1].spec.options == {"size": 128}
        with pytest.raises(BadValue, match="size must be a whole number of at least 1, not '128'"):
            planned(b=arm_request(SMALL, {"size": "128"}, "b"))
        with pytest.raises(BadValue, match=r"b threads must be a whole number, not 1\.5"):
            arm_request(SMALL, {"threads": 1.5}, "b")

    def test_another_interpreter(self):
        plan = planned(b=with_settings("python=other/bin/python"))
        assert [cell.spec.python for cell in plan.cells[:2]] == [None, "other/bin/python"]
        assert plan.duel.names == ("the defaults", "python=other/bin/python")

    def test_two_functions_of_one_file(self, here):
        plan = planned(Request(target="train.py:old"), Request(target="train.py:new"))
        assert plan.duel.names == ("train.py:old", "train.py:new")
        assert plan.duel.what == ""
        assert plan.name == "duel-train_old"

    def test_a_plan_file_as_an_arm_and_a_flag_that_wins_over_it(self, here):
        Path("plan.toml").write_text('target = "tensor_add"\nseed = 3\n[set]\nsize = 64\nvariant = "corrected"\n')
        request = asked("plan.toml", a_settings=("size=128",))
        plan = planned(request.a, request.b)
        assert [cell.spec.options for cell in plan.cells[:2]] == [
            {"size": 128, "variant": "corrected"}, {"size": 64, "variant": "corrected"},
        ]  # fmt: skip
        assert {cell.spec.seed for cell in plan.cells} == {3}
        assert plan.duel.names == ("size=128", "size=64")

    def test_what_a_plan_says_about_time_and_repeats_is_not_a_duels(self, here):
        Path("plan.toml").write_text('target = "tensor_add"\nbudget = "20s"\nrepeat = 3\n[set]\nsize = 64\n')
        plan = planned(from_toml(Path("plan.toml")))
        assert plan.duel.budget_seconds == DEFAULT_SECONDS
        assert {cell.repeat for cell in plan.cells} == {1}

    def test_the_command_lines_own_words(self):
        request = asked(
            set=("size=64",), a_settings=("variant=corrected",), b_settings=("threads=1",), budget="5m",
            margin="2.5%", label="my box", seed=4,
        )  # fmt: skip
        assert (request.budget_seconds, request.margin, request.label) == (300.0, 0.025, "my box")
        assert (request.a.options, request.a.threads) == ({"size": "64", "variant": "corrected"}, None)
        assert (request.b.options, request.b.threads) == ({"size": "64"}, 1)
        assert request.a.seed == request.b.seed == 4


class TestNames:
    @pytest.mark.parametrize(
        ("a", "b", "names"),
        [
            ({}, {}, ("tensor_add", "tensor_add")),
            ({"options": {"size": 1}}, {"options": {"size": 2}}, ("size=1", "size=2")),
            ({"options": {"n": 1, "m": "x"}}, {"options": {"n": 1, "m": "y"}}, ("m=x", "m=y")),
            ({"threads": 1}, {}, ("threads=1", "the defaults")),
            ({"threads": 1, "options": {"size": 1}}, {"seed": 2}, ("threads=1, seed=0, size=1", "seed=2")),
            ({}, {"workload": "matmul_peak"}, ("tensor_add", "matmul_peak")),
        ],
    )  # fmt: skip
    def test_each_by_what_it_has_and_the_other_has_not(self, a, b, names):
        specs = (RunSpec(**{"workload": "tensor_add", **fields}) for fields in (a, b))
        assert names_of(*specs) == names


class TestPairs:
    def test_the_cells_of_a_pair_are_equally_long_and_resident_together(self):
        plan = planned(b=with_settings("variant=corrected"))
        assert plan.is_duel
        assert [(cell.pair, cell.arm) for cell in plan.cells[:4]] == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
        assert len({cell.name for cell in plan.cells}) == len(plan.cells)
        assert [cell.name for cell in plan.cells] == sorted(cell.name for cell in plan.cells)
        assert len({cell.spec.budget for cell in plan.cells}) == 1
        needs = [
            TensorAdd(size=64, variant=variant).memory_bytes(a_system()) for variant in ("corrected", "as_published")
        ]
        assert {cell.memory_bytes for cell in plan.cells} == {sum(needs)}

    @pytest.mark.parametrize("budget", [16.0, 30.0, 60.0, 120.0, 300.0, 3600.0, 86400.0])
    def test_all_pairs_together_keep_to_the_budget(self, budget):
        plan = planned(budget_seconds=budget)
        pairs = len(plan.cells) // 2
        assert plan.seconds <= budget
        assert FEWEST_PAIRS <= pairs <= MOST_PAIRS
        assert plan.duel.least_pairs == min(LEAST_PAIRS, pairs)
        assert LEAST_MEASURED_SECONDS <= plan.cells[0].spec.budget.seconds <= MOST_MEASURED_SECONDS

    def test_more_time_gives_more_pairs_once_each_is_long_enough(self):
        counts = [len(planned(budget_seconds=budget).cells) for budget in (16.0, 60.0, 300.0, 900.0)]
        assert counts == sorted(counts)
        assert counts[0] < counts[1] < counts[2] < counts[3]

    def test_the_least_budget_that_is_named_is_enough(self):
        least = FEWEST_PAIRS * (START_TOGETHER * TensorAdd(size=64).start_seconds() + LEAST_MEASURED_SECONDS)
        assert len(planned(budget_seconds=least).cells) == 2 * FEWEST_PAIRS
        with pytest.raises(BadValue, match=r"too short: 4 pairs of processes take at least 14 s"):
            planned(budget_seconds=least - 0.1)


class TestRefusals:
    def test_a_suite(self):
        with pytest.raises(UsageError, match="device is a suite of several configurations; a duel takes one"):
            planned(Request(target="device"))

    def test_a_sweep(self, here):
        Path("plan.toml").write_text('target = "tensor_add"\n[sweep]\nsize = [1, 2, 3]\n')
        with pytest.raises(UsageError, match="tensor_add is swept into 3"):
            planned(from_toml(Path("plan.toml")))

    def test_a_sweep_over_one_value_is_one_configuration(self):
        assert planned(Request(target="tensor_add", sweep={"size": (64,)})).cells[0].spec.options == {"size": 64}

    def test_units_that_have_no_ratio(self, here):
        with pytest.raises(UsageError, match="A counts in iterations and B in steps"):
            planned(b=Request(target="train.py:old"))
        with pytest.raises(UsageError, match="A counts in steps and B in images"):
            planned(Request(target="train.py:old"), with_settings("unit=image", of=Request(target="train.py:old")))

    def test_two_arms_of_which_only_one_fits(self):
        need = TensorAdd(size=4096).memory_bytes(a_system())
        large = Request(target="tensor_add", options={"size": 4096})
        room = Resources(available_bytes=math.ceil(1.5 * need))
        with pytest.raises(BadValue, match=r"both arms are in memory at the same time, which needs .* are free; try"):
            planned(large, large, resources=room)
        assert planned(large, large, resources=Resources(available_bytes=2 * need)).cells

    def test_one_arm_that_is_too_large_by_itself_says_what_would_fit(self):
        large = Request(target="tensor_add", options={"size": 100_000})
        with pytest.raises(BadValue, match=r"size=\d+ would fit"):
            planned(large, resources=Resources(available_bytes=10**9))

    def test_a_device_that_is_not_here(self):
        with pytest.raises(BadValue, match="no cuda device here; try --device cpu"):
            planned(with_settings("device=cuda"))

    def test_arms_of_several_ranks_have_as_many(self):
        of = Request(target="mnist_cnn", ranks=2)
        plan = planned(with_settings("arrangement=ddp", of=of), with_settings("arrangement=ddp", of=of))
        cell = plan.cells[0]
        assert (cell.spec.launcher, cell.spec.world_size, cell.spec.pinned) == ("torchrun", 2, True)
        assert [each.id for each in cell.participants] == ["rank0", "rank1", "node0"]
        assert [each.id for each in plan.cells[1].participants] == ["rank0", "rank1"]  # one sampler watches both
        with pytest.raises(UsageError, match="A has one rank and B has 2 ranks: a duel is between arms of as many"):
            planned(Request(target="mnist_cnn"), with_settings("arrangement=ddp", of=of))

    def test_several_ranks_are_counted_in_memory(self):
        of = Request(target="mnist_cnn", ranks=2)
        one, two = planned(Request(target="mnist_cnn"), Request(target="mnist_cnn")), planned(of, of)
        assert two.cells[0].memory_bytes == 2 * one.cells[0].memory_bytes

    @pytest.mark.parametrize("request_of_plan", [Request(target="tensor_add", launcher="inline")])
    def test_one_process_cannot_take_turns_with_itself(self, request_of_plan):
        with pytest.raises(UsageError, match="leave out the launcher 'inline'"):
            planned(request_of_plan)

    def test_an_unknown_key_with_a_suggestion(self):
        with pytest.raises(UnknownName, match="no option of tensor_add named 'sise'; did you mean 'size'"):
            require_sense(with_settings("sise=3"))
        with pytest.raises(UnknownName, match="no option of tensor_add named 'thread'; did you mean 'threads'"):
            with_settings("thread=3")

    def test_an_unknown_update(self):
        with pytest.raises(UnknownName, match="no update named 'plane'; did you mean 'plain'"):
            planned(with_settings("update=plane"))

    @pytest.mark.parametrize("setting", ["threads=two", "seed=1.5", "threads="])
    def test_numbers_that_are_none(self, setting):
        key, _, text = setting.partition("=")
        with pytest.raises(BadValue, match=f"^--b {key} must be a whole number, not '{text}'$"):
            with_settings(setting)

    @pytest.mark.parametrize("setting", ["threads=0", "seed=-1"])
    def test_numbers_out_of_range(self, setting):
        with pytest.raises(BadValue):
            with_settings(setting)

    @pytest.mark.parametrize("margin", [0.0, -0.01, 1.0, math.nan])
    def test_a_margin_that_is_none(self, margin):
        with pytest.raises(BadValue, match="margin must lie between 0 and 100 %"):
            DuelRequest(a=SMALL, b=SMALL, margin=margin)

    def test_a_wrong_value_in_a_plan_file_is_named_with_its_line(self, here):
        Path("plan.toml").write_text('target = "tensor_add"\n[set]\nsize = "large"\n')
        with pytest.raises(BadValue, match=r"^plan\.toml:3: size must be a whole number"):
            require_sense(asked("plan.toml").a)

    @pytest.mark.parametrize("settings", [("size",), ("=3",), ("size=1", "size=2")])
    def test_settings_that_are_none(self, settings):
        with pytest.raises(BadValue, match=r"^--a "):
            asked(a_settings=settings)


class TestByJoules:
    def test_needs_a_meter(self, monkeypatch):
        monkeypatch.setattr("rigdyno.features.duel.plan.find_update_seconds", lambda clock: None)
        with pytest.raises(UsageError, match="a duel by joules needs a meter"):
            planned(by="joules")

    @pytest.mark.parametrize(("sensor", "turn"), [(0.0, 12.5), (0.1, 12.5), (2.0, 50.0)])
    def test_a_turn_has_time_for_20_readings_of_sensor_and_sampler(self, monkeypatch, sensor, turn):
        monkeypatch.setattr("rigdyno.features.duel.plan.find_update_seconds", lambda clock: sensor)
        metered = Resources(available_bytes=10**12, has_meter=True)
        plan = planned(by="joules", budget_seconds=3600.0, resources=metered)
        assert {cell.spec.workload for cell in plan.cells} == {"tensor_add"}  # no cell of the idle machine
        assert plan.duel.turn_seconds == pytest.approx(turn)
        assert plan.cells[0].spec.budget.seconds >= 6 * turn
        assert plan.seconds <= 3600.0

    def test_a_budget_that_is_too_short_says_what_it_takes(self, monkeypatch):
        monkeypatch.setattr("rigdyno.features.duel.plan.find_update_seconds", lambda clock: 0.1)
        with pytest.raises(BadValue, match="4 pairs of processes take at least 5 min"):
            planned(by="joules", budget_seconds=60.0)
