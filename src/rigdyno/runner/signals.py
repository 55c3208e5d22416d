"""`kill` and a closed terminal end a run as Ctrl-C does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Only the main thread may set handlers: elsewhere it changes nothing. What is ignored stays so: `nohup`."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    heeded = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    try:
        before = [(number, signal.signal(number, interrupt)) for number in heeded]
    except ValueError:
        before = []
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
