"""Options of an update, set and swept like the workload's under names such as update.noise_multiplier."""

import pytest
from msgspec.structs import replace

from rigdyno import catalogue
from rigdyno.base.errors import BadValue, UnknownName
from rigdyno.contracts import Unavailable
from rigdyno.features.duel.plan import DuelRequest, arm_request, expand_duel
from rigdyno.plan.build import update_of, workload_of
from rigdyno.plan.expand import expand, require_sense
from rigdyno.plan.request import Request, from_toml
from rigdyno.plan.resources import Resources
from rigdyno.schema.spec import RunSpec
from rigdyno.updates.dp_fast import DpFast
from support import a_system

PLENTY = Resources(available_bytes=10**12)
PRIVATE = Request(target="mnist_cnn", update="dp_fast")


def specs(request, **changes):
    plan = expand(replace(request, **changes), a_system(), "cpu", PLENTY)
    return [cell.spec for cell in plan.cells]


def test_update_options_reach_the_update_and_workload_options_the_workload():
    options = {"update.noise_multiplier": "2", "update.secure": "true", "batch_size": "32"}
    (spec,) = specs(PRIVATE, options=options, text_keys=tuple(options))
    assert spec.options == {"update.noise_multiplier": 2.0, "update.secure": True, "batch_size": 32}
    assert update_of(spec) == DpFast(noise_multiplier=2.0, secure=True)
    assert workload_of(spec).batch_size == 32


def test_options_that_are_not_set_are_recorded_with_their_defaults():
    (spec,) = specs(PRIVATE, options={"update.delta": 1e-6})
    assert spec.resolved["update.delta"] == 1e-6
    assert spec.resolved["update.max_grad_norm"] == DpFast().max_grad_norm


def test_update_options_can_be_swept():
    swept = specs(PRIVATE, sweep={"update.noise_multiplier": (0.5, 1.0)})
    assert [update_of(spec).noise_multiplier for spec in swept] == [0.5, 1.0]
    assert len({spec.key() for spec in swept}) == 2


def test_a_default_that_is_set_by_hand_is_no_difference():
    (usual,), (by_hand,) = specs(PRIVATE), specs(PRIVATE, options={"update.noise_multiplier": 1.0})
    assert usual.key() == by_hand.key()


def test_keys_of_ordinary_training_are_those_of_stored_runs():
    for workload, key in (("mnist_cnn", "e0de6b4fa9d223ce"), ("tensor_add", "8d9adeb0a28355bd")):
        (spec,) = specs(Request(target=workload))
        assert spec.key() == key


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"options": {"update.noise": 1.0}}, "no option of the update dp_fast named 'update.noise'; did you mean"),
        ({"update": "plain", "options": {"update.delta": 1e-5}}, "no option of the update plain named 'update.delta'"),
        ({"options": {"noise_multiplier": 1.0}}, "no option of mnist_cnn named 'noise_multiplier'; did you mean 'up"),
        ({"target": "device", "update": "plain", "options": {"update.delta": 1e-5}}, "no option in suite device"),
    ],
)
def test_unknown_update_options_are_refused(changes, words):
    with pytest.raises(UnknownName, match=words):
        specs(PRIVATE, **changes)


def test_wrong_update_options_are_refused_before_the_machine_is_inspected():
    with pytest.raises(BadValue, match=r"update\.delta must be a number above 0 and below 1, not 'small'"):
        require_sense(replace(PRIVATE, options={"update.delta": "small"}))
    with pytest.raises(BadValue, match=r"update\.noise_multiplier must be a number above 0, not -1\.0"):
        require_sense(replace(PRIVATE, options={"update.noise_multiplier": -1.0}))


@pytest.mark.parametrize("key", ['"update.delta"', "update.delta"])
def test_a_plan_file_takes_update_options_and_errors_name_the_line(tmp_path, key):
    plan = tmp_path / "plan.toml"
    plan.write_text(f'target = "mnist_cnn"\nupdate = "dp_fast"\n[set]\n{key} = 1e-6\n')
    (spec,) = specs(from_toml(plan))
    assert spec.options == {"update.delta": 1e-6}
    plan.write_text(plan.read_text().replace("1e-6", "2.0"))
    with pytest.raises(BadValue, match=r"plan\.toml:4: update\.delta must be a number above 0 and below 1, not 2\.0"):
        specs(from_toml(plan))


@pytest.mark.parametrize(
    "text",
    ["[set.update]\n\ndelta = 2.0\n", "[set]\n\nupdate = { delta = 2.0 }\n", "\n\nset.update.delta = 2.0\n"],
    ids=["a table in it", "in one line", "dots"],
)
def test_the_line_of_an_option_is_found_in_every_notation(tmp_path, text):
    plan = tmp_path / "plan.toml"
    plan.write_text(f'target = "mnist_cnn"\nupdate = "dp_fast"\n{text}')
    with pytest.raises(BadValue, match=r"plan\.toml:5: update\.delta must be a number above"):
        specs(from_toml(plan))


def test_an_update_is_refused_for_a_workload_that_trains_nothing():
    with pytest.raises(BadValue, match="changes how a model is trained, and this workload trains none"):
        specs(Request(target="tensor_add", update="dp_fast"))


def test_arms_of_a_duel_have_their_own_update_options():
    common = Request(target="mnist_cnn", options={"update.noise_multiplier": 2.0})
    arms = [
        arm_request(common, {"update": "dp_fast", "update.secure": "true"}, "--a", text=True),
        arm_request(common, {"update": "dp_opacus"}, "--b", text=True),
    ]
    plan = expand_duel(DuelRequest(a=arms[0], b=arms[1]), a_system(), "cpu", PLENTY)
    assert plan.duel.names == ("update=dp_fast, update.secure=True", "update=dp_opacus")
    assert {update_of(cell.spec).noise_multiplier for cell in plan.cells} == {2.0}
    with pytest.raises(UnknownName, match=r"no option of the update dp_opacus named 'update\.secure'"):
        arm_request(common, {"update": "dp_opacus", "update.secure": "true"}, "--b", text=True)


def test_the_cell_is_named_for_its_update():
    plan = expand(PRIVATE, a_system(), "cpu", PLENTY)
    assert [cell.name for cell in plan.cells] == ["01-mnist_cnn-dp_fast"]


def test_ranks_that_average_before_it_could_clip_are_refused():
    with pytest.raises(BadValue, match="averages gradients over the ranks before a private update could clip"):
        specs(PRIVATE, ranks=2)
    assert len(specs(PRIVATE, update="plain", ranks=2)) == 1


@pytest.mark.parametrize(("update", "extra"), [("dp_fast", "private"), ("dp_opacus", "peers")])
def test_a_missing_package_answers_with_the_command_that_adds_it(update, extra, monkeypatch):
    def missing(requirements):
        lacking = [each for each in requirements if each.extra is not None]
        return Unavailable(f"{lacking[0].module} is not installed", f"rigdyno[{lacking[0].extra}]") if lacking else None

    monkeypatch.setattr(catalogue, "find_missing", missing)
    with pytest.raises(BadValue, match=rf"update {update} can't run: .* is not installed; try rigdyno\[{extra}\]"):
        specs(PRIVATE, update=update)


def test_a_stored_option_that_the_update_no_longer_has_is_named():
    spec = RunSpec(workload="mnist_cnn", update="dp_fast", options={"update.gone": 1})
    with pytest.raises(UnknownName, match="no option of dp_fast named 'gone'"):
        update_of(spec)
