"""Tests of the audit workload: it refutes a false claim and doesn't refute a true one."""

import pytest

pytest.importorskip("dp_accounting")

from rigdyno.contracts import WorkerPlace
from rigdyno.engines.dp import Spent, epsilon
from rigdyno.workloads.dp_audit import RATE, STEPS, DpAudit

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]
HERE = WorkerPlace(device="cpu", seed=3)


def audited(**options):
    steps = DpAudit(**options).build(HERE)
    assert steps.check() is None
    assert steps.kinds["step"]() == 1.0
    return steps


def test_a_true_claim_is_not_refuted():
    steps = audited(update="dp_expanded", runs=100)
    assert steps.check() is True
    assert 0 <= steps.shown_epsilon() <= steps.settled["claimed_epsilon"]
    assert steps.settled["claimed_epsilon"] == epsilon([Spent(1.0, RATE, STEPS)], 1e-5).epsilon


def test_a_claim_of_three_times_the_noise_is_refuted():
    steps = audited(update="dp_expanded", runs=300, noise_multiplier=0.3, claimed_noise=1.0)
    assert steps.check() is False
    assert steps.shown_epsilon() > 0


def test_only_private_updates_can_be_audited():
    assert "not a private update" in DpAudit(update="plain").refuses(None, "cpu")
    assert "not a private update" in DpAudit(update="nothing").refuses(None, "cpu")
    assert DpAudit().refuses(None, "cpu") is None
