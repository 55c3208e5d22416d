"""The output of `--dry-run`: the plan of every suite on the scripted machine."""

import pytest
from golden_files import check_golden, declare, format_plan
from scripted_rig import list_suites, run_cli

PLANS = {
    **{suite: ("run", suite) for suite in list_suites()},
    "all": ("run", "all"),
    "privacy_until": ("run", "privacy", "--set", "until=0.8"),
    "privacy_audit": ("run", "privacy", "--set", "audit=yes"),
    "workload": ("run", "tensor_add", "--sweep", "size=1024,4096", "--sweep", "variant=as_published,corrected"),
}
ON_TWO_GPUS = {f"{suite}_two_gpus": ("run", suite) for suite in ("device", "scaling", "volume", "privacy")}
declare(f"plans/{name}.{form}" for name in (*PLANS, *ON_TWO_GPUS) for form in ("json", "txt"))
TEXT_ONLY = {
    "fit": ("fit", "mnist_cnn", "--memory", "1GB", "--update", "plain,dp_fast"),
    "duel": ("duel", "tensor_add", "--a", "variant=as_intended", "--b", "variant=corrected"),
}
declare(f"plans/{name}.txt" for name in TEXT_ONLY)


@pytest.mark.parametrize("name", ON_TWO_GPUS)
def test_plan_for_two_gpus_is_unchanged(name, tmp_path):
    asked = (*ON_TWO_GPUS[name], "--dry-run")
    check_golden(f"plans/{name}.json", format_plan(run_cli(*asked, "--json", folder=tmp_path, cards=2)))
    check_golden(f"plans/{name}.txt", run_cli(*asked, folder=tmp_path, cards=2))


@pytest.mark.parametrize("name", PLANS)
def test_plan_as_json_is_unchanged(name, tmp_path):
    text = run_cli(*PLANS[name], "--dry-run", "--json", folder=tmp_path)
    check_golden(f"plans/{name}.json", format_plan(text))


@pytest.mark.parametrize("name", [*PLANS, *TEXT_ONLY])
def test_plan_as_text_is_unchanged(name, tmp_path):
    text = run_cli(*{**PLANS, **TEXT_ONLY}[name], "--dry-run", folder=tmp_path)
    check_golden(f"plans/{name}.txt", text)
