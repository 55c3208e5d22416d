"""The port over devices that are simulated; tests/integration/test_tensorflow.py asks the real TensorFlow."""

from types import SimpleNamespace

import pytest

from rigdyno.frameworks.tensorflow import TensorFlow
from rigdyno.schema.record import DeviceMemory
from rigdyno.schema.system import Accelerator


class Exhausted(Exception):
    pass


class Simulated:
    """As much of tensorflow as the port asks, with cards that hold some memory."""

    def __init__(self, cards, visible=None, build=None):
        self.waited, self.reset = 0, []
        visible = cards if visible is None else visible
        self.__version__ = "2.99"
        self.errors = SimpleNamespace(ResourceExhaustedError=Exhausted)
        self.sysconfig = SimpleNamespace(
            get_build_info=lambda: build or {"cuda_version": "12.5", "is_rocm_build": False}
        )
        self.test = SimpleNamespace(experimental=SimpleNamespace(sync_devices=self._wait))
        self.config = SimpleNamespace(
            list_physical_devices=lambda kind: [SimpleNamespace(name=f"physical {n}") for n in range(cards)],
            list_logical_devices=lambda kind: [SimpleNamespace(name=f"logical {n}") for n in range(visible)],
            experimental=SimpleNamespace(
                get_device_details=lambda device: {"device_name": "Some GPU", "compute_capability": (8, 6)},
                get_memory_info=lambda name: {"current": 100 * int(name[-1]), "peak": 1000 + int(name[-1])},
                reset_memory_stats=self.reset.append,
            ),
        )

    def _wait(self):
        self.waited += 1


def test_its_cards_and_versions():
    port = TensorFlow(api=Simulated(2))
    assert port.accelerators() == (Accelerator(kind="cuda", name="Some GPU", capability="8.6"),) * 2
    assert port.versions() == {"tensorflow": "2.99", "cuda": "12.5"}
    amd = TensorFlow(api=Simulated(1, build={"is_rocm_build": True}))
    assert [card.kind for card in amd.accelerators()] == ["rocm"]


def test_a_card_is_waited_for_and_marks_are_times_behind_it():
    simulated = Simulated(1)
    port = TensorFlow(api=simulated)
    first, last = port.event("cuda"), port.event("cuda")
    assert simulated.waited == 2
    assert port.elapsed_ns(first, last) >= 0
    port.waiter("cuda:0")()
    assert simulated.waited == 3


def test_memory_is_that_of_the_card_that_is_asked_for():
    simulated = Simulated(3)
    port = TensorFlow(api=simulated)
    assert port.memory("cuda:2") == DeviceMemory(peak_bytes=1002)
    port.forget_peak_memory("cuda:2")
    assert simulated.reset == ["GPU:2"]
    assert port.in_use() == ["cuda:1", "cuda:2"]  # the first one holds nothing


def test_a_rank_that_sees_its_own_card_alone_knows_it_as_the_first():
    assert TensorFlow(api=Simulated(4, visible=1)).memory("cuda:3") == DeviceMemory(peak_bytes=1000)


@pytest.mark.parametrize("error", [Exhausted("whatever"), RuntimeError("OOM when allocating tensor with shape[9]")])
def test_signs_of_too_little_memory(error):
    assert TensorFlow(api=Simulated(0)).is_out_of_memory(error)
    assert not TensorFlow(api=Simulated(0)).is_out_of_memory(ValueError("no such file"))


def test_a_limit_is_given_to_the_card_that_is_asked_for():
    simulated, told = Simulated(3), []
    simulated.config.LogicalDeviceConfiguration = lambda memory_limit: memory_limit
    simulated.config.set_logical_device_configuration = lambda card, logical: told.append((card.name, logical))
    TensorFlow(api=simulated).limit_memory("cuda:2", 3 * 2**20)
    assert told == [("physical 2", [3])]
    TensorFlow(api=simulated).limit_memory("cpu", 3 * 2**20)
    assert len(told) == 1
