"""Fixtures for tests of blocks, workers and threads."""

from __future__ import annotations

import threading

import pytest
from blocks_children import Children
from blocks_fakes import Work


@pytest.fixture
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def work(tmp_path):
    return Work(tmp_path)


@pytest.fixture
def children():
    with Children() as children:
        yield children
