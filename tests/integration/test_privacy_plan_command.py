"""Test `rigdyno plan-privacy` against the accountant of dp_accounting, and its error messages."""

import json

import pytest
from click.testing import CliRunner

pytest.importorskip("dp_accounting")
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, pld

from rigdyno.cli import main
from rigdyno.commands.plan_privacy import command

PLAN = ["--samples", "60000", "--batch", "256", "--epochs", "5"]


def plan_privacy(tmp_path, *arguments):
    return CliRunner().invoke(command, [*PLAN, "--out", str(tmp_path), *arguments])


def compute_exact_epsilon(noise, batch, samples, epochs, delta):
    accountant = pld.PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    event = PoissonSampledDpEvent(batch / samples, GaussianDpEvent(noise))
    return accountant.compose(event, -(-epochs * samples // batch)).get_epsilon(delta)


def test_epsilon_over_the_epochs_matches_the_accountant(tmp_path):
    view = json.loads(plan_privacy(tmp_path, "--noise", "1.1", "--delta", "1e-5", "--json").output)
    table = view["tables"][1]
    found = {row["entries"]["epochs"]["value"]: row["entries"] for row in table["rows"]}
    assert list(found) == [1, 2, 5]
    for epochs, entries in found.items():
        assert entries["pld"]["value"] == pytest.approx(compute_exact_epsilon(1.1, 256, 60_000, epochs, 1e-5), rel=1e-6)
        assert entries["rdp"]["value"] > entries["pld"]["value"]
    assert "No time: no private training is stored" in view["closing"][1]


def test_the_noise_is_the_smallest_within_the_epsilon(tmp_path):
    view = json.loads(plan_privacy(tmp_path, "--epsilon", "2", "--json").output)
    noise = view["tables"][0]["rows"][0]["entries"]["noise"]["value"]
    delta = view["tables"][0]["rows"][0]["entries"]["delta"]["value"]
    assert delta == pytest.approx(0.1 / 60_000)
    assert (
        compute_exact_epsilon(noise, 256, 60_000, 5, delta)
        <= 2
        < compute_exact_epsilon(0.99 * noise, 256, 60_000, 5, delta)
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*PLAN], "give either --epsilon or --noise"),
        ([*PLAN, "--epsilon", "1", "--noise", "1"], "give either --epsilon or --noise"),
        ([*PLAN, "--epsilon", "-1"], "--epsilon must be a number above 0"),
        ([*PLAN, "--noise", "nan"], "--noise must be a number above 0"),
        ([*PLAN, "--epsilon", "1", "--delta", "0.5"], "delta 0.5 is too large for 60000 samples"),
        (
            ["--samples", "10", "--batch", "20", "--epochs", "1", "--noise", "1"],
            "larger than the data set of 10 samples",
        ),
        ([*PLAN, "--epsilon", "1", "--run", "nothing"], "nothing"),
    ],
)
def test_wrong_use_prints_one_line_and_exits_with_2(tmp_path, capfd, arguments, words):
    assert main(["plan-privacy", *arguments, "--out", str(tmp_path)]) == 2
    error = capfd.readouterr().err
    assert words in error
    assert error.count("\n") == 1
