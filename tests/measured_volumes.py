"""Make measurements of the volume suite by hand: training and inference on one and two devices."""

from rigdyno.schema.estimate import Estimate, Validity
from rigdyno.schema.measured import KindFigures, Measurement, Phases
from rigdyno.schema.record import Completed, Facts, Quality
from rigdyno.schema.spec import RunSpec
from rigdyno.suites.volume import SMALL_TRAINING
from support import a_record, with_defaults


def rate(value, unit, spread=0.02):
    low, high = value * (1 - spread), value * (1 + spread)
    return Estimate(value=value, low=low, high=high, confidence=0.95, n=10, unit=unit, method="by hand")


def measured(workload, options, value, *, ranks=1, data=0.01, **changes):
    unit = "patch" if workload == "unet3d" else "voxel"
    spec = with_defaults(RunSpec(workload=workload, options=options, world_size=ranks, threads=1, pinned=True))
    settled = (
        {"parameters": 3_000_000, "patch": "8x54x54"} if unit == "patch" else {"block": "10x108x108", "halo": "1x27x27"}
    )
    facts = Facts(unit=unit, per_item={} if unit == "patch" else {"read_voxel": 2.5}, settled=settled, notes=("made",))
    by_rank = {rank: {"data": data, "forward": 0.3, "backward": 0.6, "optimizer": 0.1 - data} for rank in range(ranks)}
    fields = {
        "spec": spec,
        "records": (a_record(spec, facts=facts),),
        "outcome": Completed(quality=Quality(first_loss=0.9, last_loss=0.7, accuracy=0.6)),
        "facts": facts,
        "kinds": {"step": KindFigures(throughput=rate(value, f"{unit}/s"), step_seconds=rate(1.0, "s"))},
        "phases": Phases(
            forward=rate(1, "patch/s"), backward=rate(1, "patch/s"), by_rank=by_rank, longest_computing=1, explained=1
        )
        if unit == "patch"
        else None,
        "validity": Validity(verdict="VALID"),
    }
    return Measurement(**{**fields, **changes})


def trained(value, ranks=1, **changes):
    return measured("unet3d", dict(SMALL_TRAINING), value, ranks=ranks, **changes)


def inferred(value, ranks=1, scheme="own", **changes):
    return measured("unet3d_inference", {"scheme": scheme, "block": "10x108x108"}, value, ranks=ranks, **changes)


EVERYTHING = [
    trained(1.0),
    trained(1.6, ranks=2),
    measured("unet3d", {"network": "isotropic"}, 0.8),
    inferred(40e3, scheme="published"),
    inferred(60e3),
    inferred(96e3, ranks=2),
]
