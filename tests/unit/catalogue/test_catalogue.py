"""Test that entries are found by file name and in installed packages, and imported only when needed."""

import subprocess
import sys

import pytest

import rigdyno.workloads
from rigdyno import catalogue, cli
from rigdyno.base.errors import CatalogueError, MissingExtra, UnknownName
from rigdyno.contracts import Requirement
from rigdyno.plan.expand import expand
from rigdyno.plan.request import Request
from rigdyno.plan.resources import Resources
from rigdyno.probes.common.probe_set import load_probes as installed_probes
from support import a_system

WORKLOAD = '''
"""A workload for a test."""
from dataclasses import dataclass
from typing import ClassVar

from rigdyno.contracts import ANY_FRAMEWORK, Steps, WorkerPlace, Workload


@dataclass(frozen=True, kw_only=True)
class Counting(Workload):
    """Counts up to a number."""

    unit: ClassVar[str] = "number"
    framework: ClassVar[str] = ANY_FRAMEWORK
    requires = ()

    until: int = 1000

    def build(self, place: WorkerPlace) -> Steps:
        return Steps(kinds={"step": lambda: float(len(range(self.until)))})
'''

PROBE = '''
from rigdyno.contracts import Channel, Probe


class Thermometer(Probe):
    """A probe for a test."""

    def availability(self): return None
    def open(self, worker_pids): return [Channel("outside_c", "C")]
    def read(self): return [21.0]
    def close(self): pass
'''


@pytest.fixture
def fresh():
    """Return a function that clears the caches; it is called once more after the test."""

    def forget():
        for cached in (catalogue.names, catalogue._own_names, catalogue._installed, catalogue._may_have_plugins):
            cached.cache_clear()

    yield forget
    forget()


@pytest.fixture
def installed(tmp_path, monkeypatch, fresh):
    """Install a package: a module, and a *.dist-info that names its entry points."""

    def install(entry_points, **modules):
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
        information = tmp_path / "plugin-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(entry_points)
        monkeypatch.syspath_prepend(tmp_path)
        fresh()

    yield install
    for name in ("plugin_counting", "plugin_probe", "plugin_broken"):
        sys.modules.pop(name, None)


def expanded(target, **fields):
    return expand(Request(target=target, **fields), a_system(), "cpu", Resources(available_bytes=10**12))


def test_names_are_file_names_without_helpers():
    assert {"tensor_add", "mnist_cnn"} <= set(catalogue.names("workload"))
    assert not any(name.startswith("_") for kind in catalogue.KINDS for name in catalogue.names(kind))


def test_names_are_known_without_importing_any():
    program = (
        "import sys; from rigdyno import catalogue\n"
        "[catalogue.names(kind) for kind in catalogue.KINDS]\n"
        "print([name for name in sys.modules if name.startswith(('rigdyno.workloads.', 'rigdyno.suites.', 'torch'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(UnknownName, match="no workload named 'tensor_ad'; did you mean 'tensor_add'"):
        catalogue.load("workload", "tensor_ad")
    with pytest.raises(UnknownName, match="no probe named '_files'; there is external, host"):
        catalogue.load("probe", "_files")


def test_a_package_adds_a_workload(installed, capsys):
    installed("[rigdyno.workloads]\ncounting = plugin_counting:Counting\n", plugin_counting=WORKLOAD)
    assert "counting" in catalogue.names("workload")
    assert "plugin_counting" not in sys.modules
    (cell,) = expanded("counting", options={"until": 5}).cells
    assert (cell.refusal, cell.spec.options) == (None, {"until": 5})
    with pytest.raises(UnknownName, match="no option of counting named 'untli'; did you mean 'until'"):
        expanded("counting", options={"untli": 5})
    assert cli.main(["list"]) == 0
    assert "Counts up to a number" in capsys.readouterr().out


def test_a_package_adds_a_probe(installed):
    installed("[rigdyno.probes]\nthermometer = plugin_probe:Thermometer\n", plugin_probe=PROBE)
    assert "thermometer" in installed_probes(print)


def test_a_package_can_not_replace_built_in_entries(installed):
    installed("[rigdyno.workloads]\ntensor_add = plugin_counting:Counting\n", plugin_counting=WORKLOAD)
    assert catalogue.load("workload", "tensor_add").__module__ == "rigdyno.workloads.tensor_add"


INCOMPLETE = "from rigdyno.contracts import Workload\nclass Counting(Workload): pass"
BROKEN = {
    "missing_module": ("plugin_not_there:Counting", "", "can't be loaded: No module named 'plugin_not_there'"),
    "missing_class": ("plugin_broken:Counting", "", "can't be loaded: .* has no attribute 'Counting'"),
    "syntax": ("plugin_broken:Counting", "def (", "can't be loaded: invalid syntax"),
    "name": ("plugin_broken:Counting", "nothing_there", "can't be loaded: name 'nothing_there'"),
    "incomplete": ("plugin_broken:Counting", INCOMPLETE, "has no build, unit"),
    "other_shape": (
        "plugin_broken:Counting",
        "class Counting: unit = 'x'",
        "is not a subclass of rigdyno.contracts.Workload",
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_entry_point_is_one_clear_error(installed, how):
    value, text, says = BROKEN[how]
    installed(f"[rigdyno.workloads]\nbroken = {value}\n", plugin_broken=text)
    with pytest.raises(CatalogueError, match=says) as raised:
        catalogue.load("workload", "broken")
    assert str(raised.value).startswith(f"the workload 'broken' ({value})")


def test_a_broken_entry_point_does_not_break_the_list(installed, capsys):
    installed("[rigdyno.workloads]\nbroken = plugin_broken:Counting\n", plugin_broken="def (")
    assert cli.main(["list"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "- broken" in shown
    assert "the workload 'broken' (plugin_broken:Counting) can't be loaded" in shown
    assert "tensor_add" in shown


def test_a_broken_probe_does_not_break_the_sampler(installed):
    installed("[rigdyno.probes]\nbroken = plugin_broken:Counting\n", plugin_broken="def (")
    said = []
    assert "host" in installed_probes(said.append)
    assert "the probe 'broken'" in said[0]


@pytest.fixture
def workloads(tmp_path, monkeypatch, fresh):
    """Add a folder of workloads, as if its files were next to ours."""
    monkeypatch.setattr(rigdyno.workloads, "__path__", [*rigdyno.workloads.__path__, str(tmp_path)])

    def add(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        fresh()

    yield add
    for name in list(sys.modules):
        if name.startswith("rigdyno.workloads.added_"):
            del sys.modules[name]


def test_a_new_workload_is_one_file(workloads, capsys):
    workloads("added_counting", WORKLOAD)
    assert "added_counting" in catalogue.names("workload")
    assert catalogue.summary(catalogue.load("workload", "added_counting")) == "Counts up to a number"
    plan = expanded("added_counting", sweep={"until": (10, 20)})
    assert [cell.name for cell in plan.cells] == ["01-added_counting-10", "02-added_counting-20"]
    assert cli.main(["list"]) == 0
    assert "+ added_counting" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 0), ("class Half:\n    unit = 'x'\n", 0), ("class _Hidden: pass\n", 0),
     (WORKLOAD + "\nclass Second(Counting): pass\n", 2)],
)  # fmt: skip
def test_a_file_must_have_one_fitting_class(workloads, text, count):
    workloads("added_wrong", text)
    with pytest.raises(
        CatalogueError, match=f"must have one public subclass of rigdyno.contracts.Workload; it has {count}"
    ):
        catalogue.load("workload", "added_wrong")


def test_a_file_must_have_its_attribute(tmp_path, monkeypatch, fresh):
    from rigdyno.report import formats

    (tmp_path / "added_format.py").write_text("")
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    fresh()
    with pytest.raises(CatalogueError, match="must have 'render'"):
        catalogue.load("format", "added_format")


def test_a_missing_requirement_is_named_with_the_command():
    demanded = (Requirement("sys"), Requirement("no_such_module", "nvidia"), Requirement("nor_this"))
    lacking = catalogue.find_missing(demanded)
    assert (lacking.reason, lacking.fix) == ("no_such_module is not installed", "pip install 'rigdyno[nvidia]'")
    assert catalogue.find_missing(demanded[:1]) is None
    with pytest.raises(MissingExtra, match="it can't run: nor_this is not installed; try pip install nor_this"):
        catalogue.require_installed(demanded[2:], "it")


def test_the_fixtures_leave_no_workloads_behind():
    assert not {"added_counting", "counting", "broken"} & set(catalogue.names("workload"))


def test_a_requirement_beyond_pip_names_its_own_command():
    lacking = catalogue.find_missing([Requirement("no_such_module", command="make no_such_module")])
    assert lacking.fix == "make no_such_module"
