"""`rigdyno infer`: run a 3D network over a volume of any size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rigdyno.base.errors import BadValue, UsageError
from rigdyno.base.units import bytes_from
from rigdyno.commands.common.output import out_option
from rigdyno.features.infer.run import InferOutput, run, show_plan
from rigdyno.plan.values import assignments
from rigdyno.store.location import root_of

if TYPE_CHECKING:
    from rigdyno.api import Run
    from rigdyno.engines.blockwise import Inference

F = TypeVar("F", bound=Callable[..., Any])

EXAMPLES = """\b
Examples:
  rigdyno infer raw.zarr out.zarr --model net.pt2
  rigdyno infer raw.zarr out.zarr --model monai:BasicUNet --weights best.pt
  rigdyno infer raw.h5/volume out.zarr --model net.py:build --memory 8GB
  rigdyno infer raw.n5/s0 out.zarr --model unet3d --weights w.pt --dry-run
  torchrun --nproc-per-node 4 -m rigdyno infer raw.zarr out.zarr --model net.pt2

\b
After Ctrl-C, a crash or a power cut, run the same command again to continue.
Run it in several terminals, or on several hosts, to share the work.
"""


def _parse_axes(text: str) -> dict[str, int]:
    return {axis: _parse_whole(number, "--at") for axis, number in assignments(text.split(","), "--at").items()}


def _parse_whole(text: str, flag: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadValue(f"{flag} takes whole numbers, not '{text}'") from None


def _parse_block(text: str) -> tuple[int, int, int]:
    numbers = [_parse_whole(part, "--block") for part in text.split(",")]
    if len(numbers) not in (1, 3):
        raise BadValue(f"--block takes one number or Z,Y,X, not '{text}'")
    z, y, x = numbers * 3 if len(numbers) == 1 else numbers
    return z, y, x


def _parse_range(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise BadValue(f"--range takes LOW,HIGH, not '{text}'") from None
    return low, high


def _option(flag: str, name: str, read: Callable[[str], Any] | None = None, **shown: Any) -> Callable[[F], F]:
    """Declare a flag for a field of the engine's `Job`, which has its type and default. `read` parses the text."""

    def convert(_context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
        return value if value is None or read is None else read(value)

    return click.option(flag, name, default=None, callback=convert, **shown)


@click.command("infer", epilog=EXAMPLES, short_help="Run a 3D network over a volume of any size.")
@click.argument("source", metavar="IN")
@click.argument("output", metavar="OUT")
@click.option("--model", required=True, metavar="MODEL", help="FILE.pt2, FILE.py:NAME, monai:NAME, or unet3d.")
@_option(
    "--weights", "weights", Path, type=click.Path(dir_okay=False),
    help="State dict (.pt, .safetensors); no code in it is run.",
)  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Setting of the model; may be repeated.")
@_option(
    "--at", "at", _parse_axes, metavar="AXIS=N[,...]", help="Time point or channel, if there are several: t=0,c=1."
)
@_option("--memory", "memory", bytes_from, metavar="SIZE", help="Memory limit: 8GB. [default: 60 % of what is free]")
@_option("--halo", "halo", help="auto, exact, one number, or Z,Y,X.  [default: auto]")
@_option(
    "--tolerance",
    "tolerance",
    type=float,
    help="Maximum error of --halo auto, as a share of the range.  [default: 0.01]",
)
@_option("--block", "block", _parse_block, metavar="Z,Y,X", help="Size of the blocks. [default: the best that fits]")
@_option("--normalise", "normalise", help="standard, range, percentile, none, or MEAN,STD.  [default: standard]")
@_option("--nan", "nan", type=float, help="Replacement for values that aren't finite.")
@_option("--mask", "mask", metavar="IN", help="Volume whose zeros are skipped; may be coarser than IN.")
@_option("--dtype", "dtype", type=click.Choice(["uint8", "float16"]), help="Type of the output.  [default: uint8]")
@_option("--range", "value_range", _parse_range, metavar="LOW,HIGH", help="Values stored as 0 and 255.  [default: 0,1]")
@_option("--backend", "backend", help="auto, torch, compile, or openvino.  [default: auto]")
@_option("--device", "device", help="auto, cpu, cuda:0, ...  [default: auto]")
@_option("--threads", "threads", type=click.IntRange(1), help="Threads for computing. [default: all cores]")
@click.option("--overwrite", is_flag=True, help="Remove what an earlier run of this command left in OUT.")
@click.option("--label", help="Name of this machine in tables.")
@out_option
@click.option("--dry-run", is_flag=True, help="Show the plan and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
def command(
    out: str | None, label: str | None, dry_run: bool, as_json: bool, quiet: bool, settings: tuple[str, ...], **job: Any
) -> int:
    """Run a network over IN (OME-Zarr, N5, HDF5), block by block, into OUT (OME-Zarr).

    Every voxel is written exactly once. A search finds the smallest halo that changes the output by less than
    --tolerance. With --halo exact it is the network's receptive field. Time and memory are stored as a run, for
    `rigdyno report`, `show` and `compare`. --out is the folder of the runs, and has nothing to do with OUT.
    """
    # With this variable torch asks the kernel for huge pages, which makes large tensors several times cheaper to
    # allocate. torch reads it only once, at import.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    output = InferOutput(root_of(out), label, as_json, quiet)
    _require_separate_folders(output.root, job["output"])
    with _convert_errors():
        inference = _make_inference({**job, "settings": assignments(settings, "--set")})
        return show_plan(inference, output) if dry_run else run(inference, output, _load)


def _load(path: Path) -> Run:
    from rigdyno import api  # imports numpy, which --help doesn't need

    return api.load(path)


def _require_separate_folders(root: Path, output: str) -> None:
    """Refuse a folder for runs inside the volume's folder: other files there would prevent continuing the command."""
    if root.resolve().is_relative_to(Path(output).resolve()):
        raise UsageError(f"{output} is for the volume only, but the folder of the runs, {root}, is in it; change --out")


def _make_inference(given: Mapping[str, Any]) -> Inference:
    from rigdyno.engines.blockwise import Inference, Job

    variables = (("RANK", "0"), ("WORLD_SIZE", "1"))
    rank, world = (_parse_whole(os.environ.get(name, default), name) for name, default in variables)
    threads = given["threads"] or _share_of_cores()
    options = {name: value for name, value in given.items() if value is not None}
    return Inference(Job(**{**options, "threads": threads, "rank": rank, "world": world}))


@contextmanager
def _convert_errors() -> Iterator[None]:
    """Turn errors of the engine, which knows nothing of the command line, into usage errors."""
    from rigdyno.engines.blockwise.errors import BlockwiseError

    try:
        yield
    except BlockwiseError as error:
        raise UsageError(str(error)) from error


def _share_of_cores() -> int | None:
    """Divide the cores among the workers of torchrun, which by default gives each worker one thread."""
    workers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, len(os.sched_getaffinity(0)) // workers) if workers > 1 else None
