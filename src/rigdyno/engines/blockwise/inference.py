"""Run a network over a whole volume: plan, then run; a second run resumes where the first one stopped."""

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

from rigdyno.engines.blockwise.backend_choice import make_backend
from rigdyno.engines.blockwise.backends import Backend, Floats
from rigdyno.engines.blockwise.boxes import Box, Grid, Zyx
from rigdyno.engines.blockwise.encoding import Encoding, Mask, make_mask
from rigdyno.engines.blockwise.errors import BadSetting, WontResume
from rigdyno.engines.blockwise.interfaces import Array, Volume
from rigdyno.engines.blockwise.journal import BlockCounts, Journal
from rigdyno.engines.blockwise.network.calls import first_line
from rigdyno.engines.blockwise.network.loading import Loaded, load_model
from rigdyno.engines.blockwise.normalising import ensure_finite, find_normalisation
from rigdyno.engines.blockwise.output_folder import (
    FOLDER,
    PLAN,
    missing_folders,
    remove_empty,
    remove_output,
    require_usable,
)
from rigdyno.engines.blockwise.pipeline import SKIP, Skip, run_blocks
from rigdyno.engines.blockwise.plan_file import WAY_OUT, SettledPlan, require_same, settle
from rigdyno.engines.blockwise.planning import AHEAD, READERS, WRITERS, Plan, PlannedRun, Planner, PlanRequest
from rigdyno.engines.blockwise.volumes.ome_zarr_output import OmeZarrOutput
from rigdyno.engines.blockwise.volumes.reading import open_volume, read_reflected
from rigdyno.engines.blockwise.watching import SilentWatcher, Summary, Watcher

Watch = Callable[[Plan, bool], Watcher]


@dataclass(frozen=True, kw_only=True)
class Job:
    """All settings of an inference; only the first three have no default."""

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
                raise BadSetting(f"the name {name!a} isn't UTF-8, which names of volumes must be; rename it")
        if not 0 < self.tolerance < 1:
            raise BadSetting(f"--tolerance must be between 0 and 1, not {self.tolerance:g}")
        if self.nan is not None and not abs(self.nan) <= float(np.finfo(np.float32).max):
            raise BadSetting(f"--nan {self.nan:g}: the value that replaces NaN and infinity must be finite itself")
        if self.overwrite and self.world > 1:
            raise BadSetting(
                "--overwrite is for one process: several would remove each other's blocks; remove OUT by hand"
            )

    @property
    def files(self) -> list[str]:
        """Return the local input files, none of which may be inside the output."""
        names = [self.source, self.mask or "", str(self.weights or "")]
        if self.model.endswith(".pt2") or ".py:" in self.model:
            names.append(self.model)
        paths = [name.removeprefix("file://") for name in names]
        return [path for path in paths if path and "://" not in path]


@dataclass(frozen=True)
class Done:
    """Result of a run."""

    plan: Plan
    summary: Summary
    counts: BlockCounts  # of the whole volume, for all workers
    clipped: int  # values that this worker clipped
    not_numbers: int  # NaNs in the network's output, in blocks of this worker


@dataclass(frozen=True)
class _BlockInput:
    """One block that was read, with its halo."""

    values: Floats
    box: Box
    inside: NDArray[np.bool_] | None  # voxels inside the mask; None without a mask
    missing: bool  # True if chunks of the input were never stored


@dataclass(frozen=True)
class _Prediction:
    values: Floats
    inside: NDArray[np.bool_] | None


class Inference:
    def __init__(self, job: Job) -> None:
        self.job = job
        if job.threads:
            torch.set_num_threads(job.threads)
        self.device = _choose_device(job.device)
        self.volume: Volume = open_volume(job.source, at=job.at)
        self.mask: Mask | None = make_mask(open_volume(job.mask), self.volume) if job.mask else None
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
        return find_normalisation(self.job.normalise, self.volume)

    @property
    def is_begun(self) -> bool:
        return not self.job.overwrite and (Path(self.job.output) / FOLDER / PLAN).exists()

    def plan(self) -> Plan:
        """Return the plan without writing anything; some samples are read and predicted."""
        self._require_usable()
        if not self.is_begun:
            return self._make_plan().plan
        settled = settle(Path(self.job.output) / FOLDER, dict)
        require_same(settled, self._fingerprint)
        return Plan.from_json(settled.plan.get("plan"))

    def run(
        self, watch: Watch = lambda plan, resumed: SilentWatcher(), *, waiting: Callable[[], None] = lambda: None
    ) -> Done:
        """Predict all blocks that are still to do.

        `watch` gets the plan before anything is written, and whether it was stored by an earlier run. `waiting` is
        called repeatedly while another process makes the plan.
        """
        output = Path(self.job.output)
        self._require_usable()
        planned: list[PlannedRun] = []
        if self.job.overwrite:
            planned.append(self._make_plan())  # before removing the old output: planning may fail
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
            self._require_consistent(plan)
            begun.append((make_backend(plan.backend, self.loaded.model, self.device), watch(plan, True)))
        return self._run_blocks(settled, plan, *begun[0])

    def _begin(self, planned: list[PlannedRun], begun: list[tuple[Backend, Watcher]], watch: Watch) -> dict[str, Any]:
        settled = planned.pop() if planned else self._make_plan()
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
        Journal.create(Path(self.job.output) / FOLDER, len(grid))
        return {"fingerprint": self._fingerprint, "plan": plan.to_json()}

    def _make_plan(self) -> PlannedRun:
        job = self.job
        request = PlanRequest(
            halo=job.halo,
            block=job.block,
            tolerance=job.tolerance,
            memory=job.memory,
            backend=job.backend,
            device=self.device,
            dtype=job.dtype,
        )
        planner = Planner(
            self.volume, self.loaded.model, request, self.figures, self._read_normalised, Path(job.output)
        )
        planned = planner.plan()
        about_mask = [self.mask.describe()] if self.mask and self.mask.factor != (1, 1, 1) else []
        remarks = (*self.loaded.remarks, *about_mask, *planned.plan.remarks)
        return replace(planned, plan=replace(planned.plan, remarks=remarks))

    def _run_blocks(self, settled: SettledPlan, plan: Plan, backend: Backend, watcher: Watcher) -> Done:
        output = OmeZarrOutput.open(self.job.output)
        if not settled.made_here:
            output.remove_litter()
        grid = Grid(plan.shape, plan.block)
        with Journal(settled.folder, len(grid), start=self.job.rank / self.job.world) as journal:
            summary = run_blocks(
                journal=journal,
                grid=grid,
                read=lambda box: self._read_block(box, plan),
                predict=lambda ready: self._predict_block(ready, plan, backend),
                encode=self._encode_block,
                write=output.write,
                readers=READERS,
                writers=WRITERS,
                ahead=AHEAD,
                watcher=watcher,
            )
            return Done(plan, summary, journal.count(), self.encoding.clipped, self.encoding.not_numbers)

    def _read_block(self, box: Box, plan: Plan) -> _BlockInput | Skip:
        inside = None
        if self.mask:
            inside = self.mask.read(box)
            if not inside.any():
                return SKIP
        size = plan.block if plan.alike else box.shape
        needed = self.loaded.model.read_box(size, plan.halo).moved(box.start)
        reading = read_reflected(self.volume, needed)
        values = ensure_finite(reading.values, needed, self.volume, self.job.nan)
        return _BlockInput(plan.normalisation.apply(values), box, inside, reading.missing)

    def _read_normalised(self, box: Box) -> Floats:
        values: Array = read_reflected(self.volume, box).values
        floats: Floats = self.figures.apply(ensure_finite(values, box, self.volume, self.job.nan))
        return floats

    def _predict_block(self, ready: _BlockInput, plan: Plan, backend: Backend) -> _Prediction:
        size = plan.block if plan.alike else ready.box.shape
        answer = backend.predict(ready.values, size, plan.halo)
        z, y, x = ready.box.shape
        return _Prediction(answer[:, :z, :y, :x], ready.inside)

    def _encode_block(self, answer: _Prediction) -> Array:
        values = self.encoding.encode(answer.values)
        if answer.inside is not None:
            values[:, ~answer.inside] = 0
        return values

    @cached_property
    def _fingerprint(self) -> dict[str, str]:
        """Return everything that must not change between two runs on the same output."""
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

    def _require_consistent(self, plan: Plan) -> None:
        """Raise WontResume if the job contradicts the stored plan."""
        job = self.job
        if job.backend not in ("auto", plan.backend):
            raise WontResume(
                f"the run in {job.output} was begun with the backend {plan.backend}, not {job.backend}: leave out "
                f"--backend, or {WAY_OUT}"
            )
        if job.memory is not None and plan.memory_bytes > job.memory:
            raise WontResume(
                f"the run in {job.output} was begun with blocks that take {plan.memory_bytes / 1e9:.3g} GB, and "
                f"--memory allows {job.memory / 1e9:.3g}: allow more, or {WAY_OUT}"
            )


def _choose_device(name: str) -> str:
    if name != "auto":
        try:
            torch.zeros(1, device=name).cpu()
        except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch's errors for a missing device
            raise BadSetting(f"the device '{name}' can't be used here ({first_line(error)}); try cpu") from None
        return name
    if torch.cuda.is_available():
        return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    return "cpu"
