"""The help page of `rigdyno` and of every verb."""

import pytest
from golden_files import check_golden, declare
from scripted_rig import list_verbs, run_cli

VERBS = list_verbs()
declare(f"help/{name}.txt" for name in ("rigdyno", *VERBS))


def test_help_of_the_top_command_is_unchanged(tmp_path):
    check_golden("help/rigdyno.txt", run_cli("--help", folder=tmp_path))


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb_is_unchanged(verb, tmp_path):
    check_golden(f"help/{verb}.txt", run_cli(verb, "--help", folder=tmp_path))
