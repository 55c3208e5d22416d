"""One table of run options: each is where the table says, works there, and nothing else is there."""

import inspect
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner

import rigdyno
from rigdyno import api
from rigdyno.base.errors import BadValue, UsageError
from rigdyno.commands import duel as duel_verb
from rigdyno.commands import run as run_verb
from rigdyno.commands.common.output import flags_of
from rigdyno.plan import request as load
from rigdyno.plan.request import Request, from_flags, from_python, from_toml
from rigdyno.plan.run_options import (
    ARGUMENTS,
    FLAGS,
    OF_ARM,
    OF_DUEL,
    PLAN_KEYS,
    RUN_OPTIONS,
    RunOption,
    message_for_python,
)
from rigdyno.plan.values import (
    DURATION,
    HOSTS,
    NAMES,
    SAVED,
    SETTINGS,
    SIZE,
    SLURM,
    SWEEP,
    SWITCH,
    TEXT,
    WEIGHTS,
    WHOLE,
)

# Options outside the table: how a run is carried out and shown, and those of a duel alone.
OF_COMMANDS = {"out", "dry_run", "as_json", "quiet", "target"}
OF_A_DUEL = {"other", "a", "b", "budget", "margin", "by", "out", "target"}
OF_DUEL_ALONE = {"budget", "margin", "by"}

ANNOTATIONS = {
    SETTINGS: "Mapping[str, Value] | None", SLURM: "Mapping[str, Value] | None",
    SWEEP: "Mapping[str, Sequence[Value]] | None", DURATION: "str | float | None", WHOLE: "int | None",
    TEXT: "str | None", SIZE: "str | None", SWITCH: "bool", HOSTS: "str | Sequence[str] | None",
}  # fmt: skip


class Written(NamedTuple):
    flag: Any  # as click gives it
    toml: str
    value: Any  # in Python
    read: Any
    read_from_flag: Any = None  # where it differs: the text isn't interpreted yet


WRITTEN = {
    SETTINGS: Written(("size=64",), "{ size = 64 }", {"size": 64}, {"size": 64}, {"size": "64"}),
    SWEEP: Written(("x=1, 2",), "{ x = [1, 2] }", {"x": range(1, 3)}, {"x": (1, 2)}, {"x": ("1", "2")}),
    SLURM: Written(("time=5",), "{ time = 5 }", {"time": 5}, {"time": "5"}),
    DURATION: Written("1h30m", '"1h30m"', 5400, 5400.0),
    SIZE: Written("2 GB", '"2 GB"', "2 GB", 2 * 10**9),
    WHOLE: Written(3, "3", 3, 3),
    TEXT: Written("some:1", '"some:1"', "some:1", "some:1"),
    SWITCH: Written(True, "true", True, True),
    NAMES: Written("a, b,c", '["a", "b", "c"]', ["a", "b", "c"], ("a", "b", "c")),
    HOSTS: Written("a, b,c", '["a", "b", "c"]', ["a", "b", "c"], ("a", "b", "c")),
    WEIGHTS: Written("w.pt", "", None, {"weights": "w.pt"}),
    SAVED: Written("w.pt", "", None, {"save": "w.pt"}),
}
BESIDE = {  # without which an option makes no sense
    "node_rank": {"nodes": 4, "rendezvous": "a:1"}, "nodes": {"rendezvous": "a:1"}, "rendezvous": {"nodes": 2},
    "remote_python": {"launcher": "slurm", "ranks": 1}, "slurm": {"launcher": "slurm", "ranks": 1},
}  # fmt: skip


def names(options):
    return [option.name for option in options]


def of_request(options):
    return [option for option in options if option.of_request and option.name != "target"]


class TestEachIsWhereTheTableSays:
    def test_run_has_every_flag(self):
        given = {parameter.name: parameter for parameter in run_verb.command.params}
        assert set(given) == {*names(FLAGS), *OF_COMMANDS, "resume", "html"}
        assert [name for name in given if name in names(FLAGS)] == names(FLAGS)
        for option in FLAGS:
            assert given[option.name].opts == [option.flag]
            assert given[option.name].help == option.help

    def test_duel_has_its_flags(self):
        given = {parameter.name: parameter for parameter in duel_verb.command.params}
        assert set(given) == {
            *names(OF_DUEL),
            *OF_COMMANDS,
            "other",
            "a_settings",
            "b_settings",
            "budget",
            "margin",
            "by",
        }
        for option in OF_DUEL:
            assert given[option.name].help == (option.duel_help or option.help)
        assert all(name in given["a_settings"].help for name in OF_ARM)

    def test_a_plan_takes_every_key(self, tmp_path):
        path = tmp_path / "plan.toml"
        for option in RUN_OPTIONS:
            path.write_text(f"{option.name} = 1979-05-27\n")  # of a type that none takes
            with pytest.raises(BadValue) as raised:
                from_toml(path)
            assert ("no key of a plan" in str(raised.value)) == (not option.in_plan), option.name

    def test_python_takes_every_argument(self):
        given = inspect.signature(rigdyno.run).parameters
        assert set(given) == {*ARGUMENTS, "out"}
        assert [name for name in given if name in ARGUMENTS] == list(ARGUMENTS)
        for name, option in ARGUMENTS.items():
            if name != "target":
                assert given[name].annotation == ANNOTATIONS[option.kind], name
                assert given[name].default is (False if option.kind is SWITCH else None), name
                assert given[name].kind is inspect.Parameter.KEYWORD_ONLY

    def test_duel_in_python_takes_its_arguments(self):
        given = inspect.signature(rigdyno.duel).parameters
        assert set(given) == {*(option.python_name for option in OF_DUEL), *OF_A_DUEL}
        for option in OF_DUEL:
            assert given[option.python_name].annotation == ANNOTATIONS[option.kind]

    def test_every_field_of_a_request_is_an_option(self):
        fields = {option.request_field for option in RUN_OPTIONS if option.of_request}
        assert set(Request.__struct_fields__) == fields | {"text_keys", "places", "cheap"}


class TestEachWorksThere:
    @pytest.mark.parametrize("option", of_request(FLAGS), ids=lambda option: option.name)
    def test_a_flag_reaches_the_request(self, option):
        written = WRITTEN[option.kind]
        request = from_flags({"target": "x", **BESIDE.get(option.name, {}), option.name: written.flag})
        assert getattr(request, option.request_field) == (written.read_from_flag or written.read)

    @pytest.mark.parametrize("option", of_request(PLAN_KEYS.values()), ids=lambda option: option.name)
    def test_a_plan_key_reaches_the_request(self, option, tmp_path):
        path = tmp_path / "plan.toml"
        beside = [f"{name} = {value!r}" for name, value in BESIDE.get(option.name, {}).items()]
        path.write_text("\n".join(['target = "x"', *beside, f"{option.name} = {WRITTEN[option.kind].toml}"]))
        assert getattr(from_toml(path), option.request_field) == WRITTEN[option.kind].read

    @pytest.mark.parametrize("option", of_request(ARGUMENTS.values()), ids=lambda option: option.name)
    def test_a_python_argument_reaches_the_request(self, option, monkeypatch):
        arguments = {**BESIDE.get(option.name, {}), option.python_name: WRITTEN[option.kind].value}
        asked = asked_of_python(monkeypatch, **arguments)
        assert getattr(asked, option.request_field) == WRITTEN[option.kind].read

    @pytest.mark.parametrize("option", OF_ARM.values(), ids=lambda option: option.name)
    def test_an_arms_own_option_reaches_its_request(self, option, monkeypatch):
        written = WRITTEN[option.kind]
        flags = {"budget": "1m", "margin": "1%", "a_settings": (f"{option.name}={written.flag}",)}
        duel = duel_verb.duel_request("x", "x", flags)
        assert getattr(duel.a, option.name) == written.read
        assert duel.b == Request(target="x")
        assert asked_of_duel(monkeypatch, a={option.name: written.value}).a == duel.a

    @pytest.mark.parametrize("option", OF_DUEL, ids=lambda option: option.name)
    def test_an_option_for_both_arms_reaches_both(self, option, monkeypatch):
        asked = asked_of_duel(monkeypatch, **{option.python_name: WRITTEN[option.kind].value})
        found = [getattr(arm, option.request_field) for arm in (asked.a, asked.b)]
        assert found == [WRITTEN[option.kind].read] * 2

    def test_python_reads_a_plan_file(self, monkeypatch, tmp_path):
        path = tmp_path / "plan.toml"
        path.write_text('target = "tensor_add"\nrepeat = 3\nseed = 7\n[set]\nsize = 64\nvariant = "corrected"\n')
        asked = asked_of_python(monkeypatch, target=str(path), repeat=2, options={"size": 8})
        assert (asked.target, asked.repeat, asked.seed) == ("tensor_add", 2, 7)
        assert asked.options == {"size": 8, "variant": "corrected"}
        assert asked.text_keys == ()

    def test_the_secret_of_nodes_started_by_hand_is_handed_on(self, monkeypatch, tmp_path):
        path = tmp_path / "run.secret"
        path.write_text("x" * 40)
        path.chmod(0o600)
        secrets = []
        monkeypatch.setattr(api, "prepare", lambda request: request)
        monkeypatch.setattr(api, "_run_in_new_folder", lambda head, out, secret: secrets.append(secret))
        rigdyno.run("x", nodes=2, rendezvous="a:1", secret_file=str(path))
        assert secrets == [b"x" * 40]


def asked_of_python(monkeypatch, target="x", **arguments):
    """The request that `rigdyno.run` makes."""
    monkeypatch.setattr(api, "prepare", lambda request: request)
    monkeypatch.setattr(api, "_run_in_new_folder", lambda head, out, secret: head)
    return rigdyno.run(target, **arguments)


def asked_of_duel(monkeypatch, **arguments):
    monkeypatch.setattr(api, "prepare_duel", lambda request: request)
    monkeypatch.setattr(api, "_run_in_new_folder", lambda head, out: head)
    return rigdyno.duel("x", **arguments)


class TestMessagesInPython:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ({"steps": 0}, "steps must be at least 1, not 0"),
            ({"repeat": "3"}, "repeat must be a whole number, not '3'"),
            ({"repeat": True}, "repeat must be a whole number, not True"),
            ({"full": 1}, "full must be true or false, not 1"),
            ({"label": 3}, "label must be text in quotes, not 3"),
            ({"budget": "5x"}, "budget: '5x' is not a duration; try 30s, 5m or 1h30m"),
            ({"options": 5}, "options must be a table of keys and values, not 5"),
            ({"options": {1: 5}}, "options must be a table of keys and values, not {1: 5}"),
            ({"options": {"size": [1]}}, "size must be a whole number of at least 1, not (1,)"),
            ({"sweep": {"size": "12"}}, "size must be a list such as [1, 2, 4], not '12'"),
            ({"options": {"size": 1}, "sweep": {"size": [2]}}, "'size' is both set and swept; choose one"),
            ({"soak": "1m", "steps": 5}, "a soak ends when its time is up: leave out steps"),
            ({"soak": 60, "full": True}, "soak and full are two different runs; choose one"),
            ({"full": True}, "full is for suites; a workload takes options, budget and steps"),
            ({"hosts": ["a"]}, "hosts needs this node and at least one other, not 'a'; no such file, if it is one"),
            ({"remote_python": "x"}, "remote_python is for nodes that Rigdyno starts by itself; add hosts"),
            ({"slurm": {"time": 5}}, "slurm sets options of Slurm; add launcher slurm"),
            ({"launcher": "slurm"}, "the number of ranks that fit on a Slurm node is unknown here; add ranks"),
            ({"ranks": 2, "launcher": "inline"}, "the launcher 'inline' starts one process, not 2; leave out launcher"),
            ({"update": "plane"}, "no update named 'plane'; did you mean 'plain'?"),
        ],
    )
    def test_messages_name_python_arguments(self, arguments, says):
        with pytest.raises(UsageError) as raised:
            rigdyno.run("tensor_add", **arguments)
        assert str(raised.value) == says

    def test_messages_of_a_duel_name_python_arguments(self):
        with pytest.raises(BadValue, match=r"^b threads must be a whole number, not '2'$"):
            rigdyno.duel("tensor_add", b={"threads": "2"})
        with pytest.raises(BadValue, match=r"^threads must be at least 1, not 0$"):
            rigdyno.duel("tensor_add", threads=0)

    def test_a_mistake_in_a_plan_has_its_line_and_one_in_an_argument_has_none(self, tmp_path):
        path = tmp_path / "plan.toml"
        path.write_text('target = "tensor_add"\nrepeat = 0\n')
        with pytest.raises(BadValue, match=r"plan\.toml:2: repeat must be at least 1, not 0"):
            rigdyno.run(str(path))
        with pytest.raises(BadValue, match=r"^repeat must be at least 1, not -1"):
            rigdyno.run(str(path), repeat=-1)

    def test_words_that_are_no_flags_are_unchanged(self):
        said = "leave out --remote-python, --set and --quiet; try `rigdyno run x --ranks 2` -- or not"
        in_python = "leave out remote_python, options and --quiet; try `rigdyno run x --ranks 2` -- or not"
        assert message_for_python(said) == in_python


class TestANewOne:
    """A new row of the table adds a flag, a key and an argument; here it is another name for the label."""

    NICKNAME = RunOption(name="nick_name", kind=TEXT, help="What friends call it.", metavar="NAME", field="label")

    @pytest.fixture(autouse=True)
    def _in_the_table(self, monkeypatch):
        monkeypatch.setattr(load, "RUN_OPTIONS", (*RUN_OPTIONS, self.NICKNAME))
        monkeypatch.setitem(PLAN_KEYS, "nick_name", self.NICKNAME)
        monkeypatch.setitem(ARGUMENTS, "nick_name", self.NICKNAME)

    def test_a_new_option_becomes_a_flag(self):
        @click.command()
        @flags_of((*FLAGS, self.NICKNAME))
        def command(**flags):
            click.echo(from_flags({"target": "x", **flags}).label)

        assert "--nick-name NAME" in CliRunner().invoke(command, ["--help"]).output
        assert CliRunner().invoke(command, ["--nick-name", "box"]).output == "box\n"

    def test_a_new_option_becomes_a_plan_key(self, tmp_path):
        path = tmp_path / "plan.toml"
        path.write_text('target = "x"\nnick_name = "box"\n')
        assert from_toml(path).label == "box"
        path.write_text('target = "x"\nnick_name = 5\n')
        with pytest.raises(BadValue, match=r"plan\.toml:2: nick_name must be text in quotes, not 5"):
            from_toml(path)

    def test_a_new_option_becomes_an_argument(self):
        assert from_python({"target": "x", "nick_name": "box"}).label == "box"
        assert message_for_python("leave out --nick-name") == "leave out nick_name"
