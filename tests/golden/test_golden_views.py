"""The output at the end of a run on the scripted machine, as text of 80 columns and as JSON."""

import json

import pytest
from golden_files import check_golden, declare, format_json
from scripted_rig import run_cli, scripted_inference

RUNS = {
    "quick": (),
    "device": ("run", "device", "--label", "my box"),
    "device_soak": ("run", "device", "--soak", "2m"),
    "scaling": ("run", "scaling"),
    "scaling_nodes": ("run", "scaling", "--nodes", "2", "--ranks", "2", "--rendezvous", "10.0.0.1:29500"),
    "cluster": ("run", "cluster"),
    "volume": ("run", "volume"),
    "privacy": ("run", "privacy"),
    "privacy_until": ("run", "privacy", "--set", "until=0.8"),
    "privacy_audit": ("run", "privacy", "--set", "audit=yes"),
    "workload": ("run", "tensor_add", "--sweep", "size=3000,5000,12288,200000"),
    "own_step": ("run", "train.py:step", "--set", "unit=image", "--repeat", "3"),
    "duel": ("duel", "tensor_add", "--a", "variant=as_intended", "--b", "variant=corrected"),
    "fit": ("fit", "mnist_cnn", "--memory", "1GB", "--update", "plain,dp_fast"),
}
EXIT_CODES = {"device": 1, "workload": 1}
declare(f"views/{name}.{form}" for name in RUNS for form in ("txt", "json"))
declare(["views/workload_progress.txt", "views/workload_show.txt"])


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a user's training step."""
    (tmp_path / "train.py").write_text("def step(batch: int = 16):\n    return batch\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", RUNS)
def test_view_of_a_run_is_unchanged(name, folder):
    text = run_cli(*RUNS[name], folder=folder, code=EXIT_CODES.get(name, 0))
    check_golden(f"views/{name}.txt", text)
    check_golden(f"views/{name}.json", format_json(run_cli("report", "--format", "json", folder=folder)))


def test_progress_and_details_of_a_run_are_unchanged(folder):
    progress = run_cli(*RUNS["workload"], folder=folder, code=1, errors=True)
    check_golden("views/workload_progress.txt", progress)
    check_golden("views/workload_show.txt", run_cli("show", folder=folder))


FORECASTS = {
    "forecast_points": (
        "forecast",
        "points.csv",
        "--devices",
        "64,128",
        "--images",
        "1.28e6",
        "--epochs",
        "90",
        "--watts",
        "300",
    ),
    "forecast_link": ("forecast", "one_node.csv", "--batch", "32", "--bytes-per-step", "102e6", "--link-gbit-s", "10"),
    "forecast_run": ("forecast", "scaling.20260102-030405", "--devices-per-node", "8", "--devices", "8"),
    "forecast_volume": ("forecast-volume", "--price-per-hour", "3", "--devices", "1,8"),
    "forecast_volume_given": ("forecast-volume", "--voxels", "8.1e12", "--watts", "300"),
}
BEFORE = {"forecast_run": ("run", "scaling", "--ranks", "4"), "forecast_volume": ("run", "volume")}
declare(f"views/{name}.{form}" for name in FORECASTS for form in ("txt", "json"))
POINTS = "devices,throughput,nodes\n1,41.49,1\n2,77.65,1\n4,154.2,1\n8,303.5,1\n16,608,2\n32,1120,4\n"


@pytest.mark.parametrize("name", FORECASTS)
def test_view_of_a_forecast_is_unchanged(name, folder):
    (folder / "points.csv").write_text(POINTS, encoding="utf-8")
    (folder / "one_node.csv").write_text(POINTS.partition("16,")[0], encoding="utf-8")
    if name in BEFORE:
        run_cli(*BEFORE[name], folder=folder)
    check_both_forms(f"views/{name}", FORECASTS[name], folder)


def check_both_forms(name, arguments, folder, code=0):
    check_golden(f"{name}.txt", run_cli(*arguments, folder=folder, code=code))
    check_golden(f"{name}.json", format_json(run_cli(*arguments, "--format", "json", folder=folder, code=code)))


declare(f"views/{name}.{form}" for name in ("compare", "leaderboard") for form in ("txt", "json"))


def test_view_of_a_comparison_is_unchanged(folder):
    """The second run has the same name, so its folder gets a number."""
    asked = ("run", "tensor_add", "--sweep", "variant=as_published,as_intended,corrected", "--repeat", "3")
    run_cli(*asked, folder=folder)
    run_cli(*asked, folder=folder, slower=1.06)
    names = ("tensor_add.20260102-030405", "tensor_add.20260102-030405-2")
    check_both_forms("views/compare", ("compare", *names, "--fail-on", "slower=3%"), folder, code=4)


def test_view_of_the_leaderboard_is_unchanged(folder):
    run_cli("--label", "my box", folder=folder)
    run_cli("--label", "old box", folder=folder, slower=2.5)
    check_both_forms("views/leaderboard", ("leaderboard", "device"), folder)


declare(f"views/plan_privacy.{form}" for form in ("txt", "json"))


def test_view_of_a_privacy_plan_is_unchanged(folder):
    run_cli(*RUNS["privacy"], folder=folder)
    asked = ("--samples", "50000", "--batch", "512", "--epochs", "5", "--noise", "2")
    check_both_forms("views/plan_privacy", ("plan-privacy", *asked), folder)


declare(f"views/all.{form}" for form in ("txt", "json"))


def test_view_of_a_campaign_is_unchanged(folder):
    """Compare the card of all suites; the suites have separate golden files."""
    check_golden("views/all.txt", run_cli("run", "all", folder=folder, code=1))
    card, *suites = json.loads(run_cli("report", "--format", "json", folder=folder))
    shown = {"card": card, "suites": [view["title"] for view in suites]}
    check_golden("views/all.json", format_json(json.dumps(shown)))


declare(f"views/{name}.{form}" for name in ("infer", "infer_plan", "doctor") for form in ("txt", "json"))
declare(["views/doctor_quick.txt"])


def test_view_of_an_inference_is_unchanged(folder):
    asked = ("infer", "raw.zarr", "out.zarr", "--model", "net.pt2", "--label", "my box")
    with scripted_inference():
        check_golden("views/infer_plan.txt", run_cli(*asked, "--dry-run", folder=folder))
        check_golden("views/infer_plan.json", format_json(run_cli(*asked, "--dry-run", "--json", folder=folder)))
        check_golden("views/infer.txt", run_cli(*asked, folder=folder, code=1))
        check_golden("views/infer.json", format_json(run_cli(*asked, "--json", folder=folder, code=1)))


def test_diagnosis_of_the_machine_is_unchanged(folder):
    check_golden("views/doctor.txt", run_cli("doctor", folder=folder))
    check_golden("views/doctor.json", format_json(run_cli("doctor", "--json", folder=folder)))
    check_golden("views/doctor_quick.txt", run_cli("doctor", "--quick", folder=folder))
