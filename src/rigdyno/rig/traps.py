"""Tries what crashes or spoils runs on some machines, each in a child process, so that a crash is only a finding."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from rigdyno.base.linux import ROOT, parse_selected_word, read_text
from rigdyno.base.units import show_bytes, show_percent
from rigdyno.rig.child import ChildEnd, run_snippet
from rigdyno.schema.estimate import Number

TRY_SECONDS = 60.0

COMPILE_SECONDS = 180.0

NO_TORCH = 77  # exit code of a snippet that couldn't import torch

SMALL_SHARED_MEMORY_BYTES = 10**9  # a container's default is 64 MB, which is one batch of images from a data loader

TORCH_ASKS = "THP_MEM_ALLOC_ENABLE"  # makes torch's CPU allocator ask for huge pages

# Instruction sets to fall back to, the widest first.
NARROWER_ISAS = ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2")

_IMPORT_TORCH = f"""\
import sys
try:
    import torch
except (ImportError, OSError) as error:
    sys.exit(print(error) or {NO_TORCH})
"""

_MATMUL = (
    _IMPORT_TORCH
    + """
dtype = torch.{dtype}
left, right = torch.rand(256, 256), torch.rand(256, 256)
product = (left.to(dtype) @ right.to(dtype)).float()
exact = left @ right
if not torch.allclose(product, exact, rtol=0.05):
    sys.exit("the product is wrong by up to %.3g" % (product - exact).abs().max().item())
"""
)

_COMPILE = (
    _IMPORT_TORCH
    + """
def small(x):
    return torch.sin(x) * 2 + x
x = torch.rand(1000)
if not torch.allclose(torch.compile(small)(x), small(x), atol=1e-5):
    sys.exit("the compiled function gives another result")
"""
)

_SHARE = (
    _IMPORT_TORCH
    + """
import os
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=2**20)
try:
    block.buf[-1] = 7
finally:
    block.close()
    block.unlink()
shared = torch.zeros(2**20).share_memory_()
child = os.fork()
if child == 0:
    shared.numpy()[:] = 1
    os._exit(0)
os.waitpid(child, 0)
if shared.sum().item() != shared.numel():
    sys.exit("what another process wrote did not arrive")
"""
)

_HUGE_PAGES = """\
import mmap, re
size = 2**26
def huge_bytes(ask):
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if ask:
        block.madvise(mmap.MADV_HUGEPAGE)
    for offset in range(0, size, 4096):
        block[offset] = 1
    rollup = open("/proc/self/smaps_rollup").read()
    block.close()
    return int(re.search(r"AnonHugePages: +(\\d+)", rollup)[1]) * 1024
print(huge_bytes(False) / size, huge_bytes(True) / size)
"""


class TrapResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one trial. A trap would spoil a measurement or crash a worker."""

    name: str
    status: Literal["fine", "trap", "unknown"]
    sentence: str
    fix: str | None = None  # a command, or what to change
    figure: Number | None = None  # the number that was read, if any


def try_bf16() -> TrapResult:
    return _try_matmul("bf16", "bfloat16")


def try_fp16() -> TrapResult:
    return _try_matmul("fp16", "float16")


def try_snippet(
    name: str, what: str, snippet: str, seconds: float = TRY_SECONDS, variables: Mapping[str, str] | None = None
) -> tuple[TrapResult, ChildEnd]:
    """Run code that should simply work, and return the result."""
    end = run_snippet(snippet, seconds, variables)
    if end.code == NO_TORCH:
        return TrapResult(name=name, status="unknown", sentence=f"torch can't be imported: {end.last_line}"), end
    return TrapResult(name=name, status="fine" if end.succeeded else "trap", sentence=f"{what} {end.describe()}"), end


def _try_matmul(name: str, dtype: str) -> TrapResult:
    snippet = _MATMUL.format(dtype=dtype)
    finding, end = try_snippet(name, f"multiplying matrices in {name}", snippet)
    if end.signal_name != "SIGILL":
        return finding
    cause = "the processor advertises instructions that this machine doesn't support"
    return TrapResult(name=name, status="trap", sentence=f"{finding.sentence}: {cause}", fix=_find_isa_fix(snippet))


def _find_isa_fix(snippet: str) -> str:
    for isa in NARROWER_ISAS:
        if run_snippet(snippet, TRY_SECONDS, {"ONEDNN_MAX_CPU_ISA": isa}).succeeded:
            return f"export ONEDNN_MAX_CPU_ISA={isa}"
    return "use float32: no setting of ONEDNN_MAX_CPU_ISA helps"


def try_compile() -> TrapResult:
    with tempfile.TemporaryDirectory() as folder:  # a warm cache would hide a missing compiler
        variables = {"TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        finding, end = try_snippet("torch.compile", "compiling a small function", _COMPILE, COMPILE_SECONDS, variables)
    missing = _find_missing_for_compile(end.errors) if finding.status == "trap" else None
    if missing is None:
        return finding
    sentence, fix = missing
    return TrapResult(name=finding.name, status="trap", sentence=sentence, fix=fix)


def _find_missing_for_compile(errors: str) -> tuple[str, str] | None:
    """Return a sentence and a fix if torch.compile lacks a compiler or a header file."""
    if "InvalidCxxCompiler" in errors or "No working C++ compiler" in errors:
        fix = "xcode-select --install" if sys.platform == "darwin" else "sudo apt-get install g++"
        return "torch.compile finds no working C++ compiler", fix
    if "Python.h" in errors:
        return "torch.compile lacks Python's header files (Python.h)", "sudo apt-get install python3-dev"
    if "omp.h" in errors:
        return "torch.compile lacks OpenMP's header file (omp.h)", "install libomp, or the compiler's OpenMP package"
    return None


def try_shared_memory() -> TrapResult:
    finding, _ = try_snippet("shared memory", "sharing a tensor between processes", _SHARE)
    size = _shared_memory_bytes(ROOT)
    if size is None:
        return finding
    sentence = f"{finding.sentence}; /dev/shm holds {show_bytes(size)}"
    figure = Number(value=size, unit="B")
    if size >= SMALL_SHARED_MEMORY_BYTES:
        return TrapResult(name=finding.name, status=finding.status, sentence=sentence, figure=figure)
    risk = "data loaders die with a bus error when it is full"
    fix = "start the container with --shm-size=8g, or: sudo mount -o remount,size=8g /dev/shm"
    return TrapResult(name=finding.name, status="trap", sentence=f"{sentence}: {risk}", fix=fix, figure=figure)


def _shared_memory_bytes(root: Path) -> int | None:
    try:
        space = os.statvfs(root / "dev/shm")
    except (OSError, AttributeError):  # AttributeError: not on every system
        return None
    return space.f_blocks * space.f_frsize


def try_huge_pages(root: Path = ROOT) -> TrapResult:
    text = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    if not text:
        return TrapResult(name="huge pages", status="unknown", sentence="this kernel has no transparent huge pages")
    end = run_snippet(_HUGE_PAGES, TRY_SECONDS)
    if not end.succeeded:
        return TrapResult(name="huge pages", status="unknown", sentence=f"asking for huge pages {end.describe()}")
    unasked, asked = (float(share) for share in end.output.split())
    return judge_huge_pages(
        parse_selected_word(text) or text, unasked, asked, torch_asks=os.environ.get(TORCH_ASKS) == "1"
    )


def judge_huge_pages(setting: str, unasked_share: float, asked_share: float, torch_asks: bool) -> TrapResult:
    got = (
        f"set to '{setting}': a fresh block gets {show_percent(unasked_share)}, {show_percent(asked_share)} if it asks"
    )
    figure = Number(value=asked_share if torch_asks else unasked_share, unit="share")
    if unasked_share > 0.5 or (torch_asks and asked_share > 0.5):
        return TrapResult(name="huge pages", status="fine", sentence=got, figure=figure)
    if asked_share > 0.5:
        sentence = f"{got}; torch doesn't ask by itself, so the first touch of a large tensor is slow"
        return TrapResult(
            name="huge pages", status="trap", sentence=sentence, fix=f"export {TORCH_ASKS}=1", figure=figure
        )
    fix = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled" if setting == "never" else None
    sentence = f"{got}; the first touch of a large tensor is slow"
    return TrapResult(name="huge pages", status="trap", sentence=sentence, fix=fix, figure=figure)


TRAPS: Mapping[str, Callable[[], TrapResult]] = {
    "bf16": try_bf16,
    "fp16": try_fp16,
    "torch.compile": try_compile,
    "shared memory": try_shared_memory,
    "huge pages": try_huge_pages,
}
