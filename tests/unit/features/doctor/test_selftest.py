"""The trials of `rigdyno selftest`, and its conclusions."""

import getpass
import socket
from pathlib import Path

import pytest

from rigdyno import api, catalogue
from rigdyno.base.errors import Interrupted
from rigdyno.features.doctor import selftest
from rigdyno.features.doctor.diagnose import Diagnosis, TrialResult
from rigdyno.features.doctor.selftest import Bench, SelfTestTrial, trials, without_names
from rigdyno.plan.request import Request
from rigdyno.schema.record import Completed, Failed, Quality, Skipped
from rigdyno.schema.system import Accelerator, Environment
from support import ManualClock, a_record, a_stored_run, a_system

CARDS = (Accelerator(kind="cuda", name="a card", memory_bytes=8 * 10**9),) * 2


def diagnosed(*accelerators):
    return Diagnosis(system=a_system(accelerators=accelerators), environment=Environment(python="3.11"))


def named(*accelerators):
    return {trial.name: trial.request for trial in trials(diagnosed(*accelerators), api.plan_even_duel)}


class TestWhatIsTried:
    @pytest.mark.parametrize("device", ["cpu", "cuda"])
    def test_every_workload_update_and_arrangement_on_every_device(self, device):
        found = named(*CARDS).values()
        plain = [request for request in found if isinstance(request, Request) and request.device == device]
        assert {request.target for request in plain} == set(catalogue.names("workload"))
        assert {request.update for request in plain} == set(catalogue.names("update"))
        assert {request.arrangement for request in plain} - {None} == set(catalogue.names("arrangement")) - {"single"}

        assert f"infer on {device}" in named(*CARDS)

    def test_every_choice_of_every_option(self):
        assert "tensor_add variant=as_published on cpu" in named()
        assert {name for name in named() if name.startswith("resnet50 precision=")}

    def test_a_duel_on_the_best_device(self):
        [duel] = [trial for trial in trials(diagnosed(*CARDS), api.plan_even_duel) if trial.plan is api.plan_even_duel]
        assert (duel.name, duel.request.device) == ("a duel on cuda", "cuda")

    def test_without_a_card_nothing_is_tried_on_one(self):
        assert all("cuda" not in name for name in named())

    def test_what_most_users_need_comes_first(self):
        first = next(iter(named(*CARDS)))
        assert first.endswith("on cuda")
        assert "=" not in first


class TestWhatCameOut:
    def judged(self, tmp_path, outcome):
        run = api.load(a_stored_run(tmp_path))
        [cell] = run.head.plan.cells
        run.folder.write_record(a_record(cell.spec, outcome=outcome), cell)
        (run.path / "cells" / cell.name / "rank0").mkdir(exist_ok=True)
        (run.path / "cells" / cell.name / "rank0" / "log.txt").write_text("line\n" * 30 + "the last\n")
        return selftest._judge(run.folder.cells([]))

    def test_it_works(self, tmp_path):
        assert self.judged(tmp_path, Completed()) == ("works", "", ())

    def test_a_wrong_answer_is_a_failure(self, tmp_path):
        result, words, _ = self.judged(tmp_path, Completed(quality=Quality(correct=False)))
        assert (result, words) == ("fails", "what it computed is wrong")

    def test_a_crash_has_the_end_of_its_log(self, tmp_path):
        crash = Failed(kind="signal", phase="measure", message="SIGSEGV")
        result, words, log = self.judged(tmp_path, crash)
        assert (result, words) == ("fails", "signal (measure): SIGSEGV")
        assert log[-1] == "the last"
        assert len(log) == 20

    def test_what_steps_aside_tells_why(self, tmp_path):
        assert self.judged(tmp_path, Skipped(reason="no")) == ("can't run here", "no", ())


def test_what_is_refused_while_planning_cannot_run_here(tmp_path):
    bench = Bench(diagnosed(), tmp_path, ManualClock(), 10.0, api.measure_head)
    tried = bench.run(SelfTestTrial("on a card", Request(target="tensor_add", device="cuda")))
    assert tried.result == "can't run here"
    assert "no cuda device here" in tried.words
    assert list(tmp_path.iterdir()) == []


def test_what_the_time_does_not_reach_is_named(tmp_path):
    clock = ManualClock()
    bench = Bench(diagnosed(), tmp_path, clock, 10.0, api.measure_head)
    clock.advance(11.0)  # before the first, which is always tried
    assert bench.run(SelfTestTrial("something", Request(target="no_such_thing"))).result == "can't run here"
    clock.advance(11.0)
    tried = bench.run(SelfTestTrial("something", Request(target="tensor_add")))
    assert tried == TrialResult(name="something", result="not tried", words="the time was up")


def test_no_name_of_host_user_or_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "result.example.org")
    monkeypatch.setattr(getpass, "getuser", lambda: "bob")
    monkeypatch.setenv("SUDO_USER", "alice")
    texts = ["bob@result", f"{Path.home()}/a {tmp_path}/b {Path.cwd()}/c", "/data/bob_work", "/Users/Bob/x", "Alice"]
    left = without_names({"result": texts, "bobbin": 3}, tmp_path)
    assert left == {
        "result": ["USER@HOST", "HOME/a STORE/b FOLDER/c", "/data/USER_work", "/Users/USER/x", "USER"],
        "bobbin": 3,
    }


def test_ctrl_c_is_no_fault_of_the_trial(tmp_path):
    def interrupt(_head, _root):
        raise Interrupted("interrupted")

    with pytest.raises(Interrupted):
        Bench(diagnosed(), tmp_path, ManualClock(), 10.0, interrupt).run(
            SelfTestTrial("it", Request(target="tensor_add"))
        )
