"""Termination signals interrupt a run like Ctrl-C, unless they are ignored."""

import os
import signal

import pytest

from rigdyno.base.processes import termination_as_interrupt


@pytest.fixture(params=[signal.SIGTERM, signal.SIGHUP])
def number(request):
    before = signal.getsignal(request.param)
    yield request.param
    signal.signal(request.param, before)


def test_termination_signals_interrupt_and_the_previous_handler_is_restored(number):
    signal.signal(number, signal.SIG_DFL)
    with pytest.raises(KeyboardInterrupt), termination_as_interrupt():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is signal.SIG_DFL


def test_an_ignored_signal_is_still_ignored(number):
    """`nohup` ignores a signal so that a run outlives its terminal."""
    signal.signal(number, signal.SIG_IGN)
    with termination_as_interrupt():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is signal.SIG_IGN
