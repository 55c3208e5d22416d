"""The machine's own limits: what they condemn, and what they must not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rigdyno.analyse.validity.verdict import apply_limits, fits_the_cache, memory_limit
from rigdyno.schema.estimate import Estimate, Validity
from rigdyno.schema.measured import KindFigures, Measurement
from rigdyno.schema.record import Completed, Facts
from rigdyno.schema.spec import RunSpec
from rigdyno.schema.system import Cache, Cpu
from support import a_record, a_system

CACHE_BYTES = 32_000_000
CPU = Cpu(
    model="Test CPU", logical_cores=2, usable_cores=2, caches=(Cache(level=3, kind="unified", size_bytes=CACHE_BYTES),)
)


def measured(workload, rate, per_item=None, verdict="VALID", **options):
    spec = RunSpec(workload=workload, options=options)
    estimate = Estimate(value=rate, low=rate, high=rate, confidence=0.95, n=9, unit="B/s", method="made up")
    return Measurement(
        spec=spec,
        records=(a_record(spec, system=a_system(cpu=CPU)),),
        outcome=Completed(),
        facts=Facts(per_item={"byte": per_item} if per_item else {}),
        kinds={"step": KindFigures(throughput=estimate, step_seconds=estimate)},
        validity=Validity(verdict=verdict),
    )


def test_a_figure_above_the_limit_is_invalid():
    limit, add = measured("memory_bandwidth", 40e9), measured("tensor_add", 50, per_item=1e9)
    held = apply_limits([limit, add])[1]
    assert held.status == "INVALID"
    assert held.validity.reasons[0].code == "above_limit"
    assert "50.0 GB/s" in held.validity.reasons[0].sentence


def test_a_limit_that_is_itself_invalid_condemns_nothing():
    limit, add = measured("memory_bandwidth", 20e9, verdict="INVALID"), measured("tensor_add", 50, per_item=1e9)
    assert memory_limit([limit, add]) is None
    assert apply_limits([limit, add])[1].status == "VALID"


def test_the_best_of_several_limits_counts():
    limits = [measured("memory_bandwidth", rate, working_set=str(rate)) for rate in (20e9, 60e9, 40e9)]
    assert memory_limit(limits).value == 60e9


def test_the_best_process_has_no_confidence():
    """The interval of the mean, widened until it contains the best process, has no level of 95 %."""
    limit = measured("memory_bandwidth", 40e9)
    figures = replace(limit.kinds["step"], process_rates=(38e9, 43e9))
    found = memory_limit([replace(limit, kinds={"step": figures})])
    assert (found.value, found.low, found.high, found.confidence) == (43e9, 40e9, 43e9, None)


@pytest.mark.parametrize(("per_item", "fits"), [(8e6, True), (4 * CACHE_BYTES, False), (1.2e9, False), (None, False)])
def test_what_fits_the_cache_is_not_held_against_the_memory(per_item, fits):
    add = measured("tensor_add", 1e6, per_item=per_item)
    assert fits_the_cache(add) is fits
    held = apply_limits([measured("memory_bandwidth", 40e9), add])[1]
    assert (held.status == "INVALID") is (per_item is not None and not fits)


def test_an_accelerator_has_another_cache():
    add = measured("tensor_add", 1e6, per_item=8e6)
    assert not fits_the_cache(replace(add, spec=RunSpec(workload="tensor_add", device="cuda")))
