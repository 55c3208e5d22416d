"""Hosts from a list or a file."""

import pytest

from rigdyno.base.errors import BadValue
from rigdyno.plan.values import read_hosts


def test_a_list_and_a_file_say_the_same(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# the rack\n10.0.0.1\nme@beta  # slow\n\n")
    assert read_hosts(str(path)) == read_hosts("10.0.0.1, me@beta") == ("10.0.0.1", "me@beta")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("alpha", "at least one other"),
        ("alpha,-oProxyCommand=evil", "not '-oProxyCommand=evil'"),
        ("alpha,be ta", "not 'be ta'"),
        ("alpha,$(evil)", "not '$(evil)'"),
        ("alpha,beta,alpha", "names alpha twice"),
        ("", "at least one other"),
    ],
)
def test_an_invalid_list_of_hosts_is_refused(text, words):
    with pytest.raises(BadValue) as refusal:
        read_hosts(text)
    assert words in str(refusal.value)
