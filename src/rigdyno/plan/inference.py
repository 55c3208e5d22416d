"""The plan of `rigdyno infer`, as the store keeps it: one cell, named by what makes two of them comparable."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rigdyno.schema.participant import laid_out
from rigdyno.schema.spec import INFER, Cell, Plan, RunSpec, Value
from rigdyno.store.location import utf8

if TYPE_CHECKING:
    from rigdyno.engines.blockwise import Inference
    from rigdyno.engines.blockwise import Plan as VolumePlan
    from rigdyno.engines.blockwise.boxes import Zyx

HASH_DIGITS = 12


def inference_plan(inference: Inference, plan: VolumePlan, label: str | None) -> Plan:
    spec = RunSpec(
        workload="infer",
        options=_shown(inference, plan),
        defaults=_beside(inference, plan),
        launcher=INFER,
        device=inference.device,
        threads=inference.job.threads,
    )
    cell = Cell(
        name="01-infer",
        spec=spec,
        participants=laid_out(1, 1, inference.device),
        memory_bytes=plan.memory_bytes,
        seconds=plan.seconds,
    )
    return Plan(name="infer", label=label, cells=(cell,))


def _shown(inference: Inference, plan: VolumePlan) -> dict[str, Value]:
    """By the names of the flags, with what was settled on. Of a network's file the name alone: the way to it often
    names a person, and says nothing about speed."""
    job = inference.job
    return {
        "model": utf8(Path(job.model).name),
        **({"set": utf8(" ".join(f"{name}={value}" for name, value in job.settings.items()))} if job.settings else {}),
        "block": _by(plan.block),
        "halo": _by(plan.halo),
        "backend": plan.backend,
        "dtype": job.dtype,
    }


def _beside(inference: Inference, plan: VolumePlan) -> dict[str, Value]:
    """What makes two runs different as well, and would make their names too long."""
    volume = inference.volume
    return {
        "model_sha256": inference.loaded.model.identity()[:HASH_DIGITS],
        "volume": _by(plan.shape),
        "input": f"{volume.channels} x {volume.dtype.name}",
        "mask": inference.mask is not None,
        "processes": inference.job.world,
    }


def _by(shape: Zyx) -> str:
    return "x".join(map(str, shape))
