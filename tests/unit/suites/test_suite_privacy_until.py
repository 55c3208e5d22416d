"""At equal utility: which cells the option `until` adds, and what it makes of three seeds each."""

import msgspec
import pytest

from numbers_in_views import complaints
from rigdyno import catalogue
from rigdyno.base.errors import BadValue, UsageError
from rigdyno.plan.build import suite_of
from rigdyno.plan.expand import expand
from rigdyno.plan.request import Request, from_flags
from rigdyno.plan.resources import Resources
from rigdyno.schema.estimate import Estimate, Missing, Validity
from rigdyno.schema.measured import Measurement
from rigdyno.schema.record import Completed, Facts, Quality
from rigdyno.suites.privacy import PrivacySuite, until
from rigdyno.workloads.datasets import mnist
from support import a_record, a_system, suite_cells


@pytest.fixture(autouse=True)
def _no_fashion(monkeypatch, tmp_path):
    monkeypatch.setattr(mnist, "FASHION_FOLDER", tmp_path / "none")


def wanted(**changes):
    options = {key: changes.pop(key) for key in ("audit", "workload") if key in changes}
    return suite_cells(PrivacySuite(until=0.8, **options), **changes)


def resolved(spec):
    """With the defaults that a plan adds."""
    of_update = {f"update.{name}": value for name, value in catalogue.defaults("update", spec.update).items()}
    return msgspec.structs.replace(spec, defaults={**catalogue.defaults("workload", spec.workload), **of_update})


def test_three_seeds_of_each_system_and_the_frontier():
    specs = [cell.spec for cell in wanted()]
    to_accuracy = [spec for spec in specs if spec.options.get("target_accuracy")]
    assert sorted({spec.seed for spec in to_accuracy}) == [0, 1, 2]
    assert len(to_accuracy) == 3 * len(until.NAMES)
    assert {spec.options["target_accuracy"] for spec in to_accuracy} == {0.8}
    assert {spec.options["validation"] for spec in specs} == {until.VALIDATION}
    assert len({spec.key() for spec in to_accuracy}) == len(until.NAMES)  # seeds are processes of one configuration
    assert len(specs) - len(to_accuracy) == len(until.NOISES) + len(until.EPOCHS)


def test_a_plan_keeps_the_seeds_and_adds_the_users():
    request = Request(target="privacy", options={"until": 0.8}, seed=10)
    plan = expand(request, a_system(), "cpu", Resources(available_bytes=10**12))
    assert sorted({cell.spec.seed for cell in plan.cells if cell.spec.options.get("target_accuracy")}) == [10, 11, 12]


def test_what_does_not_go_together_is_told():
    for other in ({"memory_bytes": 10**9}, {"audit": True}, {"full": True}, {"workload": "a.py:f"}):
        with pytest.raises(UsageError, match="until has its own data"):
            wanted(**other)


@pytest.mark.parametrize("text", ["accuracy=0.8", "80", "loss", "1", "-0.1", "nan"])
def test_a_value_that_is_no_accuracy_is_refused(text):
    with pytest.raises(BadValue, match="until must be a number of at least 0 and below 1"):
        suite_of(from_flags({"target": "privacy", "set": (f"until={text}",)}))


def test_an_accuracy_is_read_from_the_command_line():
    assert suite_of(from_flags({"target": "privacy", "set": ("until=0.80",)})).until == 0.8


def measured(spec, qualities):
    spec = resolved(spec)
    facts = Facts(unit="image", notes=("Fashion-MNIST",))
    records = tuple(a_record(spec, facts=facts, outcome=Completed(quality=quality)) for quality in qualities)
    return Measurement(
        spec=spec, records=records, outcome=records[0].outcome, facts=facts, validity=Validity(verdict="VALID")
    )


def reached(seconds, accuracy=0.79, epsilon=None, steps=100):
    return Quality(reached=True, trained_seconds=seconds, trained_steps=steps, accuracy=accuracy, epsilon=epsilon)


@pytest.fixture
def presented():
    by_noise = [cell.spec for cell in wanted() if "update.noise_multiplier" in cell.spec.options]
    to_accuracy = {
        spec.update: spec for spec in (cell.spec for cell in wanted()) if spec.options.get("target_accuracy")
    }
    missed = Quality(reached=False, trained_seconds=90.0, trained_steps=1500, accuracy=0.7, epsilon=5.0)
    found = [
        measured(to_accuracy["plain"], [reached(2.0), reached(3.0), reached(4.0)]),
        measured(to_accuracy["dp_fast"], [reached(12.0, 0.78, 1.5), reached(15.0, 0.8, 1.7), reached(18.0, 0.79, 1.9)]),
        measured(to_accuracy["dp_opacus"], [missed, missed, missed]),
        *(
            measured(spec, [Quality(accuracy=0.8 - noise / 100, epsilon=3 / noise)])
            for spec, noise in zip(by_noise, until.NOISES, strict=True)
        ),
    ]  # fmt: skip
    return PrivacySuite().present(found)


def rows_of(table):
    return {row.entries["system"].text: row.entries for row in table.rows}


def test_means_over_seeds_with_intervals(presented):
    rows = rows_of(presented.tables[0])
    ours = rows["Rigdyno's engine"]
    assert (ours["time"].value, ours["time"].n) == (
        pytest.approx((12 * 15 * 18) ** (1 / 3)),
        3,
    )  # geometric, as of all processes
    assert ours["epsilon"].value == pytest.approx((1.5 * 1.7 * 1.9) ** (1 / 3))
    assert (ours["test"].value, ours["test"].low, ours["test"].high) == (pytest.approx(0.79), 0.78, 0.8)
    assert "epsilon" not in rows["PyTorch"]
    assert isinstance(ours["time"], Estimate)


def test_what_did_not_get_there_has_no_price(presented):
    row = rows_of(presented.tables[0])["Opacus, functorch"]
    assert row["reached"].value == 0
    assert row["time"] == Missing(reason="the accuracy was not reached")
    assert any("80 % were not reached by Opacus, functorch" in words for words in presented.closing)
    assert any("Rigdyno's engine takes 5.1 times as long" in words for words in presented.closing)


def test_the_frontier_is_a_table_and_a_figure(presented):
    frontier = presented.tables[1]
    assert len(frontier.rows) == len(until.NOISES)
    figure = presented.figures[0]
    assert [datum.x for datum in figure.panels[0].series[0].data] == sorted(
        datum.x for datum in figure.panels[0].series[0].data
    )
    assert "public" in " ".join(presented.tables[0].notes)


def test_its_numbers_are_numbers(presented):
    assert complaints(msgspec.to_builtins(presented)) == []
