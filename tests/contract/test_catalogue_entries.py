"""Contract tests of every suite, update, arrangement, framework, launcher, probe, command and format. New files are
found through the catalogue."""

import inspect
import math
import subprocess
import sys
from collections import Counter
from dataclasses import is_dataclass
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from numbers_in_views import complaints
from rigdyno import catalogue, contracts
from rigdyno.base.errors import UsageError
from rigdyno.base.units import rate_unit
from rigdyno.cli import rigdyno
from rigdyno.contracts import Machine
from rigdyno.contracts.options import option_types
from rigdyno.plan.build import known_options
from rigdyno.plan.cells import cells_of
from rigdyno.plan.expand import expand
from rigdyno.plan.request import Request
from rigdyno.plan.resources import Resources
from rigdyno.report.text import Page
from rigdyno.report.view import choose_default_headline
from rigdyno.schema.estimate import Estimate, Validity
from rigdyno.schema.measured import KindFigures, Measurement
from rigdyno.schema.record import Completed, Facts, Failed, Skipped
from rigdyno.schema.spec import IDLE, SAMPLER, RunSpec
from rigdyno.schema.system import Accelerator
from rigdyno.schema.view import Presentation, View
from support import a_record, a_system

HERE = Path(__file__).parent
ALL = [(kind, name) for kind in catalogue.KINDS for name in catalogue.names(kind)]
CLASSES = [(kind, name) for kind, name in ALL if catalogue.KINDS[kind].attribute is None]
PROTOCOLS = {
    "suite": contracts.Suite, "workload": contracts.Workload, "update": contracts.Update,
    "arrangement": contracts.Arrangement, "probe": contracts.Probe, "launcher": contracts.Launcher,
    "framework": contracts.Framework,
}  # fmt: skip
SUITES, PROBES = catalogue.names("suite"), catalogue.names("probe")
COMMANDS, FORMATS = catalogue.names("command"), catalogue.names("format")
CPU = a_system()
GPU = a_system(accelerators=(Accelerator(kind="cuda", name="Some GPU", memory_bytes=24 * 10**9),))


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_every_entry_has_a_help_text(kind, name):
    entry = catalogue.load(kind, name)
    words = entry.help if isinstance(entry, click.Command) else inspect.getmodule(entry).__doc__
    assert words
    assert words.strip()


@pytest.mark.parametrize(("kind", "name"), CLASSES)
def test_every_entry_has_a_summary_for_the_list(kind, name):
    assert 10 < len(catalogue.summary(catalogue.load(kind, name))) <= 110


@pytest.mark.parametrize(("kind", "name"), CLASSES)
def test_every_entry_has_defaults_and_the_methods_of_its_protocol(kind, name):
    entry = catalogue.load(kind, name)()
    for method, wanted in vars(PROTOCOLS[kind]).items():
        if method.startswith("_") or not inspect.isfunction(wanted):
            continue
        parameters = list(inspect.signature(wanted).parameters)[1:]
        assert len(inspect.signature(getattr(entry, method)).parameters) == len(parameters), method


@pytest.mark.parametrize("name", [*catalogue.names("arrangement")])
def test_an_arrangement_names_an_existing_launcher(name):
    arrangement = catalogue.load("arrangement", name)
    assert arrangement.launcher in catalogue.names("launcher")


@pytest.mark.parametrize("name", [*catalogue.names("arrangement")])
@pytest.mark.parametrize("world_size", [1, 2])
def test_every_participant_has_a_role_of_the_arrangement(name, world_size):
    arrangement = catalogue.load("arrangement", name)
    spec = RunSpec(workload="mnist_cnn", arrangement=name, world_size=world_size, launcher=arrangement.launcher)
    [cell] = cells_of([contracts.Wanted(spec)], CPU, Resources(available_bytes=10**12))
    assert {each.role for each in cell.participants} == {*arrangement.roles, SAMPLER}


@pytest.mark.parametrize("kind", ["update", "arrangement", "framework", "launcher", "suite"])
def test_default_configurations_are_equal_dataclasses(kind):
    for name in catalogue.names(kind):
        entry = catalogue.load(kind, name)
        assert is_dataclass(entry)
        assert entry() == entry()


@pytest.mark.parametrize(("system", "device"), [(CPU, "cpu"), (GPU, "cuda"), (GPU, "cuda:0")])
@pytest.mark.parametrize("name", SUITES)
@pytest.mark.parametrize("more", [{}, {"full": True}, {"repeat": 2}, {"soak_seconds": 60.0}])
def test_the_cells_of_a_suite_can_be_planned(name, system, device, more):
    try:
        plan = expand(Request(target=name, **more), system, device, Resources(available_bytes=10**12))
    except UsageError:
        if not {"full", "soak_seconds"} & set(more):
            raise
        return  # a suite may have neither, and say so
    assert plan.suite == name
    assert plan.cells
    assert plan.runnable
    # The idle workload uses the CPU: a framework that has opened a GPU makes the machine draw more power.
    assert {cell.spec.device for cell in plan.cells if cell.spec.workload != IDLE} == {device}
    assert len({cell.name for cell in plan.cells}) == len(plan.cells)
    assert all(0 < cell.seconds < math.inf for cell in plan.runnable)


def outcome_of(index):
    failed = Failed(kind="signal", phase="measure", message="SIGILL: no such instruction")
    return (Completed(), failed, Skipped(reason="not here"))[index % 3]


def made_up(spec, index):
    outcome = outcome_of(index)
    unit = catalogue.load("workload", spec.workload).unit
    rate = Estimate(value=10.0, low=9.0, high=11.0, confidence=0.95, n=20, unit=rate_unit(unit), method="made up")
    figures = KindFigures(throughput=rate, step_seconds=rate.scaled(0.01, "s"))
    completed = isinstance(outcome, Completed)
    return Measurement(
        spec=spec,
        records=(a_record(spec, outcome=outcome),),
        outcome=outcome,
        facts=Facts(unit=unit, per_item={"byte": 1e6}),
        kinds={"step": figures} if completed else {},
        validity=Validity(verdict="VALID") if completed else None,
    )


@pytest.mark.usefixtures("without_drawing")
@pytest.mark.parametrize("name", SUITES)
@pytest.mark.parametrize("shift", range(3))
def test_a_suite_presents_completed_failed_and_skipped_cells(name, shift):
    """Cells are completed, failed and skipped in turn; each has a row, and every format can render it."""
    suite = catalogue.load("suite", name)()
    wanted = suite.cells(Request(), Machine(CPU, "cpu"))
    found = [made_up(cell.spec, index + shift) for index, cell in enumerate(wanted)]
    shown = suite.present(found)
    assert isinstance(shown, Presentation)
    statuses = Counter(row.status for table in shown.tables for row in table.rows)
    assert statuses >= Counter(measurement.status for measurement in found)
    view = View(title=shown.title, tables=shown.tables, standing=shown.standing, closing=shown.closing)
    for form in FORMATS:
        assert catalogue.load("format", form)(view, Page())
    assert complaints(msgspec.to_builtins(view)) == []
    for table in shown.tables:
        names = [table.name_of(row) for row in table.rows]
        assert len(set(names)) == len(names), names


@pytest.mark.parametrize("name", SUITES)
@pytest.mark.parametrize("shift", range(3))
def test_a_suite_has_a_headline_for_completed_failed_and_skipped_cells(name, shift):
    suite = catalogue.load("suite", name)()
    wanted = suite.cells(Request(cheap=True), Machine(CPU, "cpu"))
    shown = suite.present([made_up(cell.spec, index + shift) for index, cell in enumerate(wanted)])
    headline = shown.headline or choose_default_headline(shown)
    assert headline is not None
    assert headline.what
    assert headline.status is not None


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_and_its_workloads_have_no_option_in_common(name):
    """`--set` looks for an option in the suite first: the workload's would never be reached."""
    kind = catalogue.load("suite", name)
    asked = [kind(), *([kind(until=0.5)] if "until" in option_types(kind) else [])]
    specs = [cell.spec for suite in asked for cell in suite.cells(Request(full=False), Machine(CPU, "cpu"))]
    for spec in specs:
        assert not set(option_types(kind)) & set(known_options(spec.workload, spec.update))


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_presents_an_empty_run(name):
    assert catalogue.load("suite", name)().present([]).title


@pytest.mark.parametrize("form", FORMATS)
def test_a_format_renders_an_empty_view(form):
    text = catalogue.load("format", form)(View(title="t"), Page())
    assert isinstance(text, str)
    assert text.endswith("\n")


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_is_unavailable_or_reads_one_number_per_channel(name):
    probe = catalogue.load("probe", name)()
    unavailable = probe.availability()
    assert all(isinstance(hint, str) and hint for hint in probe.hints.values())
    if unavailable is not None:
        assert unavailable.reason
        return
    channels = probe.open(list)
    assert set(probe.hints) <= {channel.name for channel in channels}
    try:
        for _ in range(2):
            values = probe.read()
            assert len(values) == len(channels)
            assert all(isinstance(value, float) for value in values)
    finally:
        probe.close()
    assert len({channel.name for channel in channels}) == len(channels)
    assert all(channel.name and channel.unit for channel in channels)


def test_no_two_probes_have_a_channel_of_the_same_name():
    names = []
    for name in PROBES:
        probe = catalogue.load("probe", name)()
        if probe.availability() is None:
            names += [channel.name for channel in probe.open(list)]
            probe.close()
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_help_page(name):
    command, typed = catalogue.load("command", name), name.replace("_", "-")
    assert command.name == typed
    assert command.help
    assert command.short_help
    done = CliRunner().invoke(rigdyno, [typed, "--help"])
    assert done.exit_code == 0
    assert done.output.startswith(f"Usage: rigdyno {typed}")
    for parameter in command.params:
        assert not isinstance(parameter, click.Option) or parameter.help or parameter.name == "form", parameter.name


def test_the_help_names_every_command_and_gives_examples():
    done = CliRunner().invoke(rigdyno, ["--help"])
    assert done.exit_code == 0
    assert all(f"  {name.replace('_', '-')} " in done.output for name in COMMANDS)
    assert "Examples:" in done.output


@pytest.mark.parametrize("name", catalogue.names("launcher"))
def test_a_launcher_has_a_scope_and_opens_at_once_on_this_machine(name):
    launcher = catalogue.load("launcher", name)()
    assert launcher.scope in ("process", "machine", "nodes", "elsewhere")
    if launcher.scope in ("process", "machine"):
        session = launcher.open(contracts.Opening(cells=(), system=CPU))
        session.close()
        session.close()


@pytest.mark.parametrize("name", catalogue.names("arrangement"))
def test_the_launcher_of_an_arrangement_can_start_one_nodes_ranks(name):
    """Launchers for several nodes use it on each node."""
    assert hasattr(catalogue.load("launcher", catalogue.load("arrangement", name).launcher), "start_part")


@pytest.mark.parametrize("name", catalogue.names("framework"))
def test_a_framework_answers_everything_about_the_cpu(name):
    framework = catalogue.load("framework", name)()
    assert framework.module in {requirement.module for requirement in framework.requires}
    assert isinstance(framework.has_no_accelerator(), bool)
    if catalogue.find_missing(framework.requires) is not None:
        return
    if name == contracts.DEFAULT_FRAMEWORK:
        answers(framework)
        return
    # Two frameworks are never loaded into one process, and this one has torch.
    asked = f"own.answers(own.catalogue.load('framework', {name!r})())"
    program = f"import sys; sys.path[:] = {sys.path}; import test_catalogue_entries as own; {asked}"
    done = subprocess.run([sys.executable, "-c", program], cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def answers(framework):
    assert all(isinstance(card, Accelerator) for card in framework.accelerators())
    assert framework.module in framework.versions()
    assert framework.threads() is None or framework.threads() >= 1
    assert framework.waiter("cpu") is None
    framework.forget_peak_memory("cpu")
    assert framework.memory("cpu") is None
    assert "cpu" not in framework.in_use()
    assert not framework.is_out_of_memory(ValueError("no such file"))
