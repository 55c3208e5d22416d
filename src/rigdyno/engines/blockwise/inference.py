"""A network over a whole volume: plan, then run; run again after anything, and it goes on where it stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rigdyno.engines.blockwise.backends import Backend, Floats
from rigdyno.engines.blockwise.boxes import Box, Zyx
from rigdyno.engines.blockwise.choosing import made
from rigdyno.engines.blockwise.encoding import Encoding
from rigdyno.engines.blockwise.errors import BadSetting, WontResume
from rigdyno.engines.blockwise.grid import Grid
from rigdyno.engines.blockwise.journal import Counts, Journal
from rigdyno.engines.blockwise.masking import Mask, mask_of
from rigdyno.engines.blockwise.network.calls import first_line
from rigdyno.engines.blockwise.network.loading import Loaded, load_model
from rigdyno.engines.blockwise.normalising import finite, normalisation
from rigdyno.engines.blockwise.output_folder import (
    FOLDER,
    PLAN,
    missing_folders,
    remove_empty,
    remove_output,
    require_usable,
)
from rigdyno.engines.blockwise.pipeline import SKIP, Skip, run_blocks
from rigdyno.engines.blockwise.plan_file import WAY_OUT, Settled, require_same, settle
from rigdyno.engines.blockwise.planning import AHEAD, READERS, WRITERS, Asked, Plan, Planned, Planner
from rigdyno.engines.blockwise.ports import Array, Volume
from rigdyno.engines.blockwise.volumes.ome_zarr_output import OmeZarrOutput
from rigdyno.engines.blockwise.volumes.opening import open_volume
from rigdyno.engines.blockwise.volumes.reflect import read_reflected
from rigdyno.engines.blockwise.watching import Silent, Summary, Watcher

Watch = Callable[[Plan, bool], Watcher]


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that a user can say; only the first three have no default."""

    source: str
    output: str
    model: str
    weights: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    at: Mapping[str, int] = field(default_factory=dict)
    halo: str = "auto"
    block: Zyx | None = None
    tolerance: float = 0.01
    memory: int | None = None
    normalise: str = "standard"
    nan: float | None = None
    mask: str | None = None
    dtype: str = "uint8"
    value_range: tuple[float, float] = (0.0, 1.0)
    backend: str = "auto"
    device: str = "auto"
    threads: int | None = None
    overwrite: bool = False
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        for name in (self.source, self.output, self.mask or ""):
            if name != name.encode(errors="replace").decode():
                raise BadSetting(f"{name!a} isn't UTF-8, and volumes are only found by such names; rename it")
        if not 0 < self.tolerance < 1:
            raise BadSetting(f"--tolerance must lie between 0 and 1, not {self.tolerance:g}")
        if self.nan is not None and not abs(self.nan) <= float(np.finfo(np.float32).max):
            raise BadSetting(f"--nan {self.nan:g}: what stands for values that aren't finite must be finite itself")
        if self.overwrite and self.world > 1:
            raise BadSetting("--overwrite is for one process: each would remove what the others do; remove OUT by hand")

    @property
    def files(self) -> list[str]:
        """Here, of which none may lie in the output."""
        named = [self.source, self.mask or "", str(self.weights or "")]
        if self.model.endswith(".pt2") or ".py:" in self.model:
            named.append(self.model)
        paths = [name.removeprefix("file://") for name in named]
        return [path for path in paths if path and "://" not in path]


@dataclass(frozen=True)
class Done:
    plan: Plan
    summary: Summary
    counts: Counts  # of the whole volume, by all workers
    clipped: int
    not_numbers: int  # answers of the network, by this worker


@dataclass(frozen=True)
class _Ready:
    """One block, read: what `predict` takes."""

    values: Floats
    box: Box
    inside: NDArray[np.bool_] | None
    missing: bool


@dataclass(frozen=True)
class _Answer:
    values: Floats
    inside: NDArray[np.bool_] | None


class Inference:
    def __init__(self, job: Job) -> None:
        self.job = job
        if job.threads:
            torch.set_num_threads(job.threads)
        self.device = _device(job.device)
        self.volume: Volume = open_volume(job.source, at=job.at)
        self.mask: Mask | None = mask_of(open_volume(job.mask), self.volume) if job.mask else None
        self.encoding = Encoding(job.dtype, *job.value_range)
        self.loaded: Loaded = load_model(
            job.model, settings=job.settings, weights=job.weights, channels=self.volume.channels
        )
        if self.loaded.model.channels_in != self.volume.channels:
            own, given = self.loaded.model.channels_in, self.volume.channels
            raise BadSetting(
                f"{job.model} takes {own} channels and {job.source} has {given}; try --at c=0 for one of them"
            )

    @cached_property
    def figures(self) -> Any:
        return normalisation(self.job.normalise, self.volume)

    @property
    def is_begun(self) -> bool:
        return not self.job.overwrite and (Path(self.job.output) / FOLDER / PLAN).exists()

    def plan(self) -> Plan:
        """Reads and computes some samples; writes nothing."""
        self._require_usable()
        if not self.is_begun:
            return self._planned().plan
        settled = settle(Path(self.job.output) / FOLDER, dict)
        require_same(settled, self._fingerprint)
        return Plan.from_json(settled.plan.get("plan"))

    def run(self, watch: Watch = lambda plan, resumed: Silent(), *, waiting: Callable[[], None] = lambda: None) -> Done:
        """`watch` is told the plan before anything is written, and whether it was there already."""
        output = Path(self.job.output)
        self._require_usable()
        planned: list[Planned] = []
        if self.job.overwrite:
            planned.append(self._planned())  # while what is to be replaced is still there: it may be refused
            remove_output(output)
        begun: list[tuple[Backend, Watcher]] = []
        missing = missing_folders(output)
        try:
            settled = settle(output / FOLDER, lambda: self._begin(planned, begun, watch), waiting=waiting)
        except BaseException:
            remove_empty(missing)
            raise
        require_same(settled, self._fingerprint)
        plan = Plan.from_json(settled.plan.get("plan"))
        if not begun:
            self._require_fitting(plan)
            begun.append((made(plan.backend, self.loaded.model, self.device), watch(plan, True)))
        return self._blocks(settled, plan, *begun[0])

    def _begin(self, planned: list[Planned], begun: list[tuple[Backend, Watcher]], watch: Watch) -> dict[str, Any]:
        settled = planned.pop() if planned else self._planned()
        plan = settled.plan
        begun.append((settled.backend, watch(plan, False)))
        grid = Grid(plan.shape, plan.block)
        OmeZarrOutput.create(
            self.job.output,
            shape=plan.shape,
            channels=plan.channels,
            dtype=self.job.dtype,
            block=plan.block,
            voxel_size=self.volume.voxel_size,
            name=Path(self.job.output).name.removesuffix(".zarr").removesuffix(".ome"),
            attributes=self._provenance(plan),
        )
        Journal.lay_out(Path(self.job.output) / FOLDER, len(grid))
        return {"fingerprint": self._fingerprint, "plan": plan.to_json()}

    def _planned(self) -> Planned:
        job = self.job
        asked = Asked(
            halo=job.halo,
            block=job.block,
            tolerance=job.tolerance,
            memory=job.memory,
            backend=job.backend,
            device=self.device,
            dtype=job.dtype,
        )
        planner = Planner(self.volume, self.loaded.model, asked, self.figures, self._floats, Path(job.output))
        planned = planner.plan()
        about_mask = [self.mask.remark()] if self.mask and self.mask.factor != (1, 1, 1) else []
        remarks = (*self.loaded.remarks, *about_mask, *planned.plan.remarks)
        return replace(planned, plan=replace(planned.plan, remarks=remarks))

    def _blocks(self, settled: Settled, plan: Plan, backend: Backend, watcher: Watcher) -> Done:
        output = OmeZarrOutput.open(self.job.output)
        if not settled.made_here:
            output.remove_litter()
        grid = Grid(plan.shape, plan.block)
        with Journal(settled.folder, len(grid), start=self.job.rank / self.job.world) as journal:
            summary = run_blocks(
                journal=journal,
                grid=grid,
                read=lambda box: self._read(box, plan),
                predict=lambda ready: self._predict(ready, plan, backend),
                encode=self._encode,
                write=output.write,
                readers=READERS,
                writers=WRITERS,
                ahead=AHEAD,
                watcher=watcher,
            )
            return Done(plan, summary, journal.counts(), self.encoding.clipped, self.encoding.not_numbers)

    def _read(self, box: Box, plan: Plan) -> _Ready | Skip:
        inside = None
        if self.mask:
            inside = self.mask.inside(box)
            if not inside.any():
                return SKIP
        size = plan.block if plan.alike else box.shape
        needed = self.loaded.model.read_box(size, plan.halo).moved(box.start)
        reading = read_reflected(self.volume, needed)
        values = finite(reading.values, needed, self.volume, self.job.nan)
        return _Ready(plan.normalisation.apply(values), box, inside, reading.missing)

    def _floats(self, box: Box) -> Floats:
        values: Array = read_reflected(self.volume, box).values
        floats: Floats = self.figures.apply(finite(values, box, self.volume, self.job.nan))
        return floats

    def _predict(self, ready: _Ready, plan: Plan, backend: Backend) -> _Answer:
        size = plan.block if plan.alike else ready.box.shape
        answer = backend.predict(ready.values, size, plan.halo)
        z, y, x = ready.box.shape
        return _Answer(answer[:, :z, :y, :x], ready.inside)

    def _encode(self, answer: _Answer) -> Array:
        values = self.encoding.encode(answer.values)
        if answer.inside is not None:
            values[:, ~answer.inside] = 0
        return values

    @cached_property
    def _fingerprint(self) -> dict[str, str]:
        """What must be the same for blocks of two runs to lie in one volume."""
        job = self.job
        return {
            "model": self.loaded.model.identity(),
            "input": self.volume.identity(),
            "normalisation": f"{job.normalise}, nan {job.nan}",
            "grid": f"block {job.block}, halo {job.halo}, tolerance {job.tolerance:g}",
            "output_type": f"{job.dtype}, {job.value_range}",
            "mask": self.mask.volume.identity() if self.mask else "none",
        }

    def _provenance(self, plan: Plan) -> dict[str, Any]:
        return {
            "input": self.job.source,
            "model": self.loaded.name,
            "model_sha256": self._fingerprint["model"],
            "halo": list(plan.halo),
            "halo_error": plan.halo_error,
            "block": list(plan.block),
            "normalisation": plan.to_json()["normalisation"],
            "value_range": list(self.job.value_range) if self.job.dtype == "uint8" else None,
        }

    def _require_usable(self) -> None:
        require_usable(self.job.output, self.job.files, overwrite=self.job.overwrite)

    def _require_fitting(self, plan: Plan) -> None:
        """What was settled before is kept; if it isn't what is asked for now, that is said."""
        job = self.job
        if job.backend not in ("auto", plan.backend):
            raise WontResume(
                f"what was begun in {job.output} is computed by {plan.backend}, not by {job.backend}: leave out "
                f"--backend, or {WAY_OUT}"
            )
        if job.memory is not None and plan.memory_bytes > job.memory:
            raise WontResume(
                f"what was begun in {job.output} has blocks that take {plan.memory_bytes / 1e9:.3g} GB, and "
                f"--memory allows {job.memory / 1e9:.3g}: allow more, or {WAY_OUT}"
            )


def _device(name: str) -> str:
    if name != "auto":
        try:
            torch.zeros(1, device=name).cpu()
        except (RuntimeError, AssertionError, NotImplementedError) as error:  # as torch says that it has none
            raise BadSetting(f"the device '{name}' can't be used here ({first_line(error)}); try cpu") from None
        return name
    if torch.cuda.is_available():
        return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    return "cpu"
