"""Tests of the TensorFlow framework over simulated devices; tests/integration/test_tensorflow.py uses the real one."""

from types import SimpleNamespace

import pytest

from rigdyno.frameworks.tensorflow import TensorFlow
from rigdyno.schema.record import DeviceMemory
from rigdyno.schema.system import Accelerator


class Exhausted(Exception):
    pass


class Simulated:
    """The part of tensorflow that the framework calls, with devices that have some memory allocated."""

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


def test_accelerators_and_versions_are_reported():
    port = TensorFlow(api=Simulated(2))
    assert port.accelerators() == (Accelerator(kind="cuda", name="Some GPU", capability="8.6"),) * 2
    assert port.versions() == {"tensorflow": "2.99", "cuda": "12.5"}
    amd = TensorFlow(api=Simulated(1, build={"is_rocm_build": True}))
    assert [card.kind for card in amd.accelerators()] == ["rocm"]


def test_an_event_waits_for_the_device_and_reads_the_clock():
    simulated = Simulated(1)
    port = TensorFlow(api=simulated)
    first, last = port.event("cuda"), port.event("cuda")
    assert simulated.waited == 2
    assert port.elapsed_ns(first, last) >= 0
    port.waiter("cuda:0")()
    assert simulated.waited == 3


def test_memory_is_that_of_the_given_device():
    simulated = Simulated(3)
    port = TensorFlow(api=simulated)
    assert port.memory("cuda:2") == DeviceMemory(peak_bytes=1002)
    port.forget_peak_memory("cuda:2")
    assert simulated.reset == ["GPU:2"]
    assert port.in_use() == ["cuda:1", "cuda:2"]  # nothing is allocated on the first


def test_a_rank_that_sees_only_its_own_device_knows_it_as_the_first():
    assert TensorFlow(api=Simulated(4, visible=1)).memory("cuda:3") == DeviceMemory(peak_bytes=1000)


@pytest.mark.parametrize("error", [Exhausted("whatever"), RuntimeError("OOM when allocating tensor with shape[9]")])
def test_out_of_memory_errors_are_recognised(error):
    assert TensorFlow(api=Simulated(0)).is_out_of_memory(error)
    assert not TensorFlow(api=Simulated(0)).is_out_of_memory(ValueError("no such file"))


def test_a_memory_limit_is_set_on_the_given_device():
    simulated, limits = Simulated(3), []
    simulated.config.LogicalDeviceConfiguration = lambda memory_limit: memory_limit
    simulated.config.set_logical_device_configuration = lambda card, logical: limits.append((card.name, logical))
    TensorFlow(api=simulated).limit_memory("cuda:2", 3 * 2**20)
    assert limits == [("physical 2", [3])]
    TensorFlow(api=simulated).limit_memory("cpu", 3 * 2**20)
    assert len(limits) == 1
