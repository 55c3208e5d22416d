"""The classes of errors: one class for every package that isn't installed."""

import pytest

from rigdyno.base.errors import EXIT_USAGE, MissingExtra, RigdynoError, UsageError, os_error_reason
from rigdyno.engines import blockwise, dp


def test_both_engines_raise_the_same_class_for_a_missing_package():
    assert blockwise.MissingExtra is MissingExtra
    assert dp.MissingExtra is MissingExtra


@pytest.mark.parametrize("caught", [UsageError, RigdynoError, ValueError])
def test_a_missing_package_is_a_usage_error_and_a_value_error(caught):
    with pytest.raises(caught, match="pip install x") as raised:
        raise MissingExtra("x isn't installed: pip install x")
    assert (raised.value.exit_code, raised.value.key) == (EXIT_USAGE, None)


def test_the_system_s_words_are_in_lower_case():
    assert os_error_reason(PermissionError(13, "Permission denied")) == "permission denied"
    assert os_error_reason(OSError("Something else")) == "something else"
