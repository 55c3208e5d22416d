from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from rigdyno.runner.sampling import _stopped


def process(code):
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)


def test_a_sampler_that_is_stopped_while_it_still_starts_has_not_died():
    started = process("import time; print(flush=True); time.sleep(60)")
    started.stdout.readline()
    assert _stopped(started) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_sampler_that_ended_before_it_was_told_to_has_died(number):
    dead = process(f"import os; os.kill(os.getpid(), {int(number)})")
    dead.wait()
    assert _stopped(dead) == -number
