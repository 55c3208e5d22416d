"""Tests of child processes: crashes and hangs are results."""

import importlib.metadata
import signal
import sys
from importlib import metadata
from types import SimpleNamespace

import msgspec
import pytest

from rigdyno.rig import devices, traps
from rigdyno.rig.child import ChildEnd, run_snippet
from rigdyno.rig.devices import FoundDevices, choose_best_device, find_accelerators
from rigdyno.schema.system import Accelerator

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


def test_a_working_snippet_succeeds():
    end = run_snippet("print('hello')", seconds=60)
    assert (end.succeeded, end.output.strip(), end.signal_name) == (True, "hello", None)


def test_a_signal_is_named():
    finding, _ = traps.try_snippet("illegal", "an illegal instruction", DIES)
    assert finding.status == "trap"
    assert finding.sentence == "an illegal instruction dies with SIGILL"


def test_an_exception_is_described_by_its_last_line():
    assert run_snippet("raise ValueError('too small')", seconds=60).describe() == "fails: ValueError: too small"


def test_a_hang_is_killed_with_its_children():
    hang = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    end = run_snippet(hang, seconds=0.3)
    assert (end.succeeded, end.signal_name) == (False, None)
    assert end.describe() == "did not end within 0.3 s"


def test_illegal_bf16_is_fixed_by_a_narrower_instruction_set(monkeypatch):
    tried = []

    def run(snippet, seconds, variables=None):
        tried.append((variables or {}).get("ONEDNN_MAX_CPU_ISA"))
        return ChildEnd(0 if tried[-1] == "AVX512_CORE" else -signal.SIGILL)

    monkeypatch.setattr(traps, "run_snippet", run)
    finding = traps.try_bf16()
    assert tried == [None, "AVX512_CORE_BF16", "AVX512_CORE"]
    assert (finding.status, finding.fix) == ("trap", "export ONEDNN_MAX_CPU_ISA=AVX512_CORE")
    assert "SIGILL" in finding.sentence


def test_without_torch_the_result_is_unknown(monkeypatch):
    monkeypatch.setattr(traps, "run_snippet", lambda *_: ChildEnd(traps.NO_TORCH, output="No module named 'torch'\n"))
    assert traps.try_fp16().status == "unknown"
    assert traps.try_compile().status == "unknown"


def test_a_missing_compiler_is_named(monkeypatch):
    errors = "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in ..."
    monkeypatch.setattr(traps, "run_snippet", lambda *_: ChildEnd(1, errors=errors))
    finding = traps.try_compile()
    assert finding.sentence == "torch.compile finds no working C++ compiler"
    assert "g++" in (finding.fix or "") or "xcode" in (finding.fix or "")


def test_huge_pages_are_judged_by_setting_and_share():
    assert traps.judge_huge_pages("always", 1.0, 1.0, torch_asks=False).status == "fine"
    assert traps.judge_huge_pages("madvise", 0.0, 1.0, torch_asks=True).status == "fine"
    assert traps.judge_huge_pages("madvise", 0.0, 1.0, torch_asks=False).fix == "export THP_MEM_ALLOC_ENABLE=1"
    assert "echo madvise" in (traps.judge_huge_pages("never", 0.0, 0.0, torch_asks=False).fix or "")


def test_small_shared_memory_is_a_trap(monkeypatch):
    monkeypatch.setattr(traps, "run_snippet", lambda *_: ChildEnd(0))
    monkeypatch.setattr(traps, "_shared_memory_bytes", lambda _: 64 * 2**20)
    finding = traps.try_shared_memory()
    assert finding.status == "trap"
    assert "--shm-size" in (finding.fix or "")


def test_devices_are_read_from_the_childs_last_line(monkeypatch):
    card = Accelerator(kind="rocm", name="MI300X", memory_bytes=1, capability="gfx942")
    answer = msgspec.json.encode(FoundDevices(accelerators=(card,), versions={"torch": "2.9"})).decode()
    monkeypatch.setattr(devices, "run_python", lambda *_: ChildEnd(0, output=f"a warning\n{answer}\n"))
    assert find_accelerators() == FoundDevices(accelerators=(card,), versions={"torch": "2.9"})


def test_a_crash_of_the_driver_is_given_as_a_reason(monkeypatch):
    monkeypatch.setattr(devices, "run_python", lambda *_: ChildEnd(-signal.SIGSEGV))
    found = find_accelerators()
    assert found.accelerators == ()
    assert found.reason == "asking torch for its devices dies with SIGSEGV"


def test_the_best_device_is_an_accelerator_if_there_is_one():
    assert choose_best_device(()) == "cpu"
    assert choose_best_device((Accelerator(kind="rocm", name="a"),)) == "cuda"
    assert choose_best_device((Accelerator(kind="mps", name="a"),)) == "mps"


def test_an_accelerator_seen_by_two_frameworks_counts_once():
    card, other = Accelerator(kind="cuda", name="a"), Accelerator(kind="xpu", name="b")
    found = devices.merge_devices(
        [
            FoundDevices(accelerators=(card, card), threads=2, versions={"torch": "2.9", "cuda": "13"}),
            FoundDevices(reason="tensorflow can't be imported"),
            FoundDevices(accelerators=(card, other), threads=4, versions={"jax": "1", "cuda": "12"}),
        ]
    )
    assert found.accelerators == (card, card, other)
    assert found.reason == "tensorflow can't be imported"
    assert found.threads == 2
    assert found.versions == {"torch": "2.9", "cuda": "13", "jax": "1"}


@pytest.mark.parametrize(("version", "asked"), [("2.13.0+cpu", 0), ("2.13.0", 1), ("2.13.0+cu128", 1)])
def test_a_cpu_only_torch_is_not_asked(monkeypatch, version, asked):
    """Loading torch takes seconds."""
    calls = []
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    monkeypatch.setattr(devices, "_ask", lambda name, seconds: calls.append(name) or FoundDevices())
    assert devices.find_accelerators_here() == ()
    assert calls == ["torch"] * (asked if sys.platform == "linux" else 1)


def test_a_framework_that_does_not_load_is_given_as_a_reason():
    def broken():
        raise OSError("libcudart.so.12: cannot open shared object file")

    found = devices.find_devices_here(SimpleNamespace(module="torch", accelerators=broken))
    assert found == FoundDevices(reason="torch can't be imported: libcudart.so.12: cannot open shared object file")


def test_the_child_process_answers_for_its_framework():
    found = devices._ask("torch", 240.0)
    assert found.reason is None
    assert found.versions["torch"] == metadata.version("torch")
