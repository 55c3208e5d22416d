"""Contract tests of every workload, update and arrangement. New files are found through the catalogue."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, Literal, get_args, get_origin, get_type_hints

import pytest

from rigdyno import catalogue
from rigdyno.arrangements.single import Single
from rigdyno.contracts import ANY_FRAMEWORK, DEFAULT_FRAMEWORK, Requirement, Steps, Training, TrainingJob, WorkerPlace
from rigdyno.rig.traps import TRAPS
from rigdyno.schema.system import Cache, Cpu, System
from rigdyno.updates.plain import Plain

HERE = Path(__file__).parent
KINDS = ("workload", "update", "arrangement")
NAMED = [*KINDS, "framework"]
ENTRIES = [(kind, name) for kind in KINDS for name in catalogue.names(kind)]
WORKLOADS = catalogue.names("workload")
SIMPLE = (bool, int, float, str)
TRAINED_STEPS = 15
SYSTEM = System(
    cpu=Cpu(
        model="a CPU",
        logical_cores=2,
        usable_cores=2,
        caches=(Cache(level=3, kind="unified", size_bytes=2**25, shared_by=2),),
    ),
    memory_bytes=8 * 10**9,
    operating_system="Linux",
    kernel="6",
    architecture="x86_64",
)


def small(name):
    entry = catalogue.load("workload", name)
    return entry(**entry.small)


def class_vars(entry):
    return {name for name, hint in get_type_hints(entry).items() if get_origin(hint) is ClassVar or hint is ClassVar}


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_every_entry_is_a_frozen_keyword_only_dataclass(kind, name):
    entry = catalogue.load(kind, name)
    assert dataclasses.is_dataclass(entry)
    assert entry.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(entry))


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in NAMED for name in catalogue.names(kind)])
def test_every_entry_has_the_name_of_its_file(kind, name):
    assert catalogue.load(kind, name).__name__.lower() == name.replace("_", "")


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_every_option_has_a_simple_type_and_a_default(kind, name):
    entry = catalogue.load(kind, name)
    hints = get_type_hints(entry)
    for field in dataclasses.fields(entry):
        hint = hints[field.name]
        choices = get_args(hint) if get_origin(hint) is Literal else None
        assert hint in SIMPLE or choices, field.name
        assert field.default is not dataclasses.MISSING, field.name
        assert field.default in choices if choices else isinstance(field.default, hint), field.name


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_every_entry_states_its_requirements(kind, name):
    entry = catalogue.load(kind, name)
    assert "requires" in class_vars(entry)
    assert all(isinstance(requirement, Requirement) for requirement in entry.requires)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_states_its_traits(name):
    entry = catalogue.load("workload", name)
    assert {"unit", "framework", "version", "requires", "arrangement", "trains", "small"} <= class_vars(entry)
    assert entry.unit
    assert entry.framework in (ANY_FRAMEWORK, *catalogue.names("framework"))
    assert entry.version >= 1
    assert entry.arrangement in catalogue.names("arrangement")
    assert set(entry().traps()) <= set(TRAPS)


@pytest.mark.parametrize("kind", ["update", "arrangement"])
def test_updates_and_arrangements_name_their_framework(kind):
    for name in catalogue.names(kind):
        entry = catalogue.load(kind, name)
        supported = (entry.framework,) if kind == "update" else entry.frameworks
        assert set(supported) <= {ANY_FRAMEWORK, *catalogue.names("framework")}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_answers_the_questions_of_planning(name):
    workload = catalogue.load("workload", name)()
    refusal = workload.refuses(SYSTEM, "cpu")
    assert refusal is None or (isinstance(refusal, str) and refusal)
    memory = workload.memory_bytes(SYSTEM)
    assert memory is None or (isinstance(memory, int) and memory > 0)
    assert 0 < workload.start_seconds() < 600
    for device in ("cpu", "cuda"):
        step = workload.step_seconds(device)
        assert step is None or 0 < step < 600


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_that_does_not_refuse_works(name):
    workload = small(name)
    if workload.refuses(SYSTEM, "cpu") is not None:
        pytest.skip(workload.refuses(SYSTEM, "cpu"))
    if workload.arrangement != "single":
        pytest.skip("is about several ranks: tests/integration/test_ranks.py joins them")
    if workload.framework in (ANY_FRAMEWORK, DEFAULT_FRAMEWORK):
        works(workload)
        return
    lacking = catalogue.find_missing(workload.requires)
    if lacking is not None:
        pytest.skip(lacking.reason)
    # Two frameworks are never loaded into one process, and this one has torch.
    program = f"import sys; sys.path[:] = {sys.path}; import test_workloads as own; own.works(own.small({name!r}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def works(workload):
    built = workload.build(WorkerPlace(device="cpu"))
    assert isinstance(built, Training if workload.trains else Steps)
    assert all(isinstance(note, str) and note for note in built.notes)
    if isinstance(built, Training):
        learns(built)
        return
    for step in built.kinds.values():
        items = step()
        assert items is None or items > 0
    assert built.check is None or built.check() is True


def learns(built):
    """Check that the loss is recorded and falls, as the validity rules require."""
    inputs, targets = next(built.batches)
    assert len(inputs) == len(targets) > 0
    workload = SimpleNamespace(build=lambda place: dataclasses.replace(built, accuracy=None))
    meter = SimpleNamespace(more=iter([True] * TRAINED_STEPS + [False]).__next__, step=lambda items: None)
    quality = Single().run(TrainingJob(workload, Plain(), WorkerPlace(device="cpu"), lambda built, collective: meter))
    assert quality.loss_finite is True
    assert quality.last_loss < quality.first_loss


def test_loading_all_entries_imports_no_heavy_package():
    named = [(kind, name) for kind in NAMED for name in catalogue.names(kind)]
    loads = "; ".join(f"catalogue.load({kind!r}, {name!r})()" for kind, name in named)
    program = (
        f"import sys; from rigdyno import catalogue; import rigdyno.workloads.common.user_function; {loads}; "
        "print([name for name in ('torch', 'numpy', 'tensorflow', 'psutil') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
