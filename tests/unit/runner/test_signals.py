"""What ends a run as Ctrl-C does, and what doesn't."""

import os
import signal

import pytest

from rigdyno.runner.signals import termination_as_interrupt


@pytest.fixture(params=[signal.SIGTERM, signal.SIGHUP])
def number(request):
    before = signal.getsignal(request.param)
    yield request.param
    signal.signal(request.param, before)


def test_it_interrupts_and_the_handler_of_before_is_back(number):
    signal.signal(number, signal.SIG_DFL)
    with pytest.raises(KeyboardInterrupt), termination_as_interrupt():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is signal.SIG_DFL


def test_what_was_ignored_is_ignored_still(number):
    """As `nohup` does, for a run that is to outlive its terminal."""
    signal.signal(number, signal.SIG_IGN)
    with termination_as_interrupt():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is signal.SIG_IGN
