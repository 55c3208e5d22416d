"""`rigdyno infer`: a 3D network over a volume of any size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rigdyno.commands._inference import Manner, only_plan, run
from rigdyno.commands._shared import out_option, root_of
from rigdyno.errors import BadValue, UsageError
from rigdyno.plan.values import assignments
from rigdyno.units import bytes_from

if TYPE_CHECKING:
    from rigdyno.engines.blockwise import Inference

EXAMPLES = """\b
Examples:
  rigdyno infer raw.zarr out.zarr --model net.pt2
  rigdyno infer raw.zarr out.zarr --model monai:BasicUNet --weights best.pt
  rigdyno infer raw.h5/volume out.zarr --model net.py:build --memory 8GB
  rigdyno infer raw.n5/s0 out.zarr --model unet3d --weights w.pt --dry-run
  torchrun --nproc-per-node 4 -m rigdyno infer raw.zarr out.zarr --model net.pt2

\b
Run the same command again after Ctrl-C, a crash or a power cut, and it goes on;
run it in several terminals, or on several hosts, and they share the work.
"""


@click.command("infer", epilog=EXAMPLES, short_help="A 3D network over a volume of any size.")
@click.argument("source", metavar="IN")
@click.argument("output", metavar="OUT")
@click.option("--model", required=True, metavar="MODEL", help="FILE.pt2, FILE.py:NAME, monai:NAME, or unet3d.")
@click.option(
    "--weights", type=click.Path(dir_okay=False), help="A state dict (.pt, .safetensors); no code in it is run."
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the model; may be repeated.")
@click.option("--at", metavar="AXIS=N[,...]", help="Which time or channel, where there are several: t=0,c=1.")
@click.option("--memory", metavar="SIZE", help="All that may be used, such as 8GB. [default: 60 % of what is free]")
@click.option("--halo", default="auto", show_default=True, help="auto, exact, one number, or Z,Y,X.")
@click.option("--tolerance", type=float, default=0.01, show_default=True, help="What auto may be off by, of the range.")
@click.option("--block", metavar="Z,Y,X", help="The blocks' size. [default: the best that fits]")
@click.option(
    "--normalise", default="standard", show_default=True, help="standard, range, percentile, none, or MEAN,STD."
)
@click.option("--nan", type=float, help="Read values that aren't finite as this one.")
@click.option("--mask", metavar="IN", help="A volume, perhaps a coarser one, that is zero where nothing is to be done.")
@click.option(
    "--dtype", type=click.Choice(["uint8", "float16"]), default="uint8", show_default=True, help="What is stored."
)
@click.option(
    "--range", "value_range", default="0,1", show_default=True, metavar="LOW,HIGH", help="What 0..255 stand for."
)
@click.option("--backend", default="auto", show_default=True, help="auto, torch, compile, or openvino.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda:0, ...")
@click.option("--threads", type=click.IntRange(1), help="Threads for computing. [default: all cores]")
@click.option("--overwrite", is_flag=True, help="Remove what an earlier run of this command left in OUT.")
@click.option("--label", help="What to call this rig in tables.")
@out_option
@click.option("--dry-run", is_flag=True, help="Show the plan, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--quiet", is_flag=True, help="Only what went wrong.")
def command(
    source: str,
    output: str,
    out: str | None,
    label: str | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    **asked: Any,
) -> int:
    """Run a network over IN (OME-Zarr, N5, HDF5), block by block, into OUT (OME-Zarr).

    Every voxel is written exactly once. What is needed around a block is found by trying how little of it changes
    the answer by less than --tolerance, or taken from the network's receptive field (--halo exact). What it took is
    kept as a run, for `rigdyno report`, `show` and `compare`; --out says where, and has nothing to do with OUT.
    """
    # torch asks the kernel for large pages then, which makes its large maps several times cheaper to get; read once,
    # when torch is loaded.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    manner = Manner(root_of(out), label, as_json, quiet)
    _require_apart(manner.root, output)
    with _one_line():
        inference = _inference(source, output, **asked)
        return only_plan(inference, manner) if dry_run else run(inference, manner)


def _require_apart(root: Path, output: str) -> None:
    """Whatever else lies in the volume's folder would keep the same command from going on with it."""
    if root.resolve().is_relative_to(Path(output).resolve()):
        raise UsageError(f"{output} is for the volume alone, and {root} for runs lies in it; choose another with --out")


def _inference(source: str, output: str, **asked: Any) -> Inference:
    from rigdyno.engines.blockwise import Inference, Job

    rank, world = _whole(os.environ.get("RANK", "0"), "RANK"), _whole(os.environ.get("WORLD_SIZE", "1"), "WORLD_SIZE")
    job = Job(
        source=source,
        output=output,
        model=asked["model"],
        weights=Path(asked["weights"]) if asked["weights"] else None,
        settings=assignments(asked["settings"], "--set"),
        at={axis: _whole(number, "--at") for axis, number in assignments(_parts(asked["at"]), "--at").items()},
        memory=bytes_from(asked["memory"]) if asked["memory"] else None,
        halo=asked["halo"],
        tolerance=asked["tolerance"],
        block=_block(asked["block"]),
        normalise=asked["normalise"],
        nan=asked["nan"],
        mask=asked["mask"],
        dtype=asked["dtype"],
        value_range=_range(asked["value_range"]),
        backend=asked["backend"],
        device=asked["device"],
        threads=asked["threads"] or _own_threads(),
        overwrite=asked["overwrite"],
        rank=rank,
        world=world,
    )
    return Inference(job)


@contextmanager
def _one_line() -> Iterator[None]:
    """The engine knows nothing of the program around it: its refusals become the program's own."""
    from rigdyno.engines.blockwise.errors import BlockwiseError

    try:
        yield
    except BlockwiseError as error:
        raise UsageError(str(error)) from error


def _own_threads() -> int | None:
    """torchrun gives each worker one thread, unless it is told otherwise; here they share the cores."""
    workers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, len(os.sched_getaffinity(0)) // workers) if workers > 1 else None


def _parts(text: str | None) -> list[str]:
    return text.split(",") if text else []


def _whole(text: str, flag: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadValue(f"{flag} takes whole numbers, not '{text}'") from None


def _block(text: str | None) -> tuple[int, int, int] | None:
    if text is None:
        return None
    numbers = [_whole(part, "--block") for part in text.split(",")]
    if len(numbers) not in (1, 3):
        raise BadValue(f"--block takes one number or Z,Y,X, not '{text}'")
    z, y, x = numbers * 3 if len(numbers) == 1 else numbers
    return z, y, x


def _range(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise BadValue(f"--range takes LOW,HIGH, not '{text}'") from None
    return low, high
