"""Probes that hang are given up as soon as they do: no test waits for a time limit to pass."""

import queue
import threading
from types import SimpleNamespace

import pytest

from rigdyno.probes import _meters, _rounds
from rigdyno.threads import Worker


class Hang:
    """A call that blocks until `let_go`, and tells who waits for it that its time is up."""

    def __init__(self):
        self.begun, self._released = threading.Event(), threading.Event()

    def __call__(self):
        if not self._released.is_set():
            self.begun.set()
        assert self._released.wait(60)

    def let_go(self):
        self._released.set()


@pytest.fixture
def hang(monkeypatch):
    """A call that hangs. A round of readings is given up once it has begun; all others are waited for."""
    hang = Hang()

    class UntilItHangs(queue.SimpleQueue):
        def get(self, timeout):
            while True:
                try:
                    return super().get(timeout=0.001)
                except queue.Empty:
                    if hang.begun.is_set():
                        hang.begun.clear()
                        raise

    monkeypatch.setattr(_rounds, "queue", SimpleNamespace(SimpleQueue=UntilItHangs, Empty=queue.Empty))
    yield hang
    hang.let_go()


@pytest.fixture
def give_up_on(monkeypatch):
    """A function that makes one probe late with opening, by its name; the others get all the time they need."""

    def give_up(name):
        class Late(Worker):
            def __init__(self, thread_name):
                super().__init__(thread_name)
                self._is_late = thread_name == f"probe {name}"

            def answer(self, seconds):
                return None if self._is_late else super().answer(seconds)

        monkeypatch.setattr(_meters, "Worker", Late)

    return give_up
