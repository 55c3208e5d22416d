"""Requests are read from flags and TOML files; every mistake is reported with its file, line and key."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rigdyno.base.errors import BadValue, RigdynoError, UsageError
from rigdyno.plan.expand import expand
from rigdyno.plan.request import Request, from_flags, from_python, from_toml
from rigdyno.plan.resources import Resources
from rigdyno.plan.values import assignments, sweeps
from rigdyno.schema.spec import RunPlan
from support import a_system


@pytest.fixture
def plan(tmp_path):
    def written(text):
        path = tmp_path / "plan.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def expanded(request):
    return expand(request, a_system(), "cpu", Resources(available_bytes=10**12))


def test_a_plan_says_the_same_as_the_flags(plan):
    text = """
target = "tensor_add"
budget = "1h30m"
repeat = 3
device = "cpu"
threads = 2
seed = 7
label = "mine"
update = "plain"
arrangement = "single"
launcher = "inline"

[set]
variant = "corrected"

[sweep]
size = [64, 128]
"""
    request = from_toml(plan(text))
    assert request.options == {"variant": "corrected"}
    assert request.sweep == {"size": (64, 128)}
    assert (request.target, request.budget_seconds, request.repeat) == ("tensor_add", 5400, 3)
    assert (request.threads, request.seed, request.label, request.launcher) == (2, 7, "mine", "inline")
    same = {
        "target": "tensor_add", "repeat": 3, "budget": "1h30m", "device": "cpu", "threads": 2, "seed": 7,
        "label": "mine", "update": "plain", "arrangement": "single", "launcher": "inline",
    }  # fmt: skip
    flags = {**same, "set": ("variant=corrected",), "sweep": ("size=64, 128",)}
    arguments = {**same, "options": {"variant": "corrected"}, "sweep": {"size": [64, 128]}}
    assert expanded(from_flags(flags)) == expanded(from_python(arguments)) == expanded(request)


T = 'target = "tensor_add"\n'


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (T + "\nrepaet = 3\n", 3, "no key of a plan named 'repaet'; did you mean 'repeat'?"),
        (T + 'repeat = "3"\n', 2, "repeat must be a whole number, not '3'"),
        (T + "repeat = true\n", 2, "repeat must be a whole number, not True"),
        (T + "full = 1\n", 2, "full must be true or false, not 1"),
        (T + "label = 1\n", 2, "label must be text in quotes, not 1"),
        (T + "seed = 1.0\n", 2, "seed must be a whole number, not 1.0"),
        (T + "seed = 1979-05-27\n", 2, "seed must be a whole number"),
        (T + 'budget = "5 parsecs"\n', 2, "budget: '5 parsecs' is not a duration; try 30s"),
        (T + "budget = true\n", 2, 'budget must be a duration such as "5m", not True'),
        (T + "soak = -1\n", 2, "soak: a duration must be longer than zero"),
        (T + "soak = nan\n", 2, "soak: 'nan' is not a duration"),
        (T + "set = 1\n", 2, "set must be a table"),
        (T + "sweep = []\n", 2, "sweep must be a table"),
        (T + "[set]\nsize = [[1]]\n", 3, "size must be a number, text, true or false, or a list of them, not [[1]]"),
        (T + "[sweep]\nsize = 5\n", 3, "size must be a list such as [1, 2, 4], not 5"),
        (T + "[sweep]\nsize = [[1]]\n", 3, "size must be a list"),
        ("target = 5\n", 1, "target must be text"),
        ('label = "x"\n', None, 'a plan needs a target, e.g. target = "device"'),
        (T + "repeat = 0\n", 2, "repeat must be at least 1, not 0"),
        (T + "repeat = 100000\n", 2, "repeat must be at most 1000"),
        (T + "threads = -1\n", 2, "threads must be at least 1, not -1"),
        (T + "seed = -1\n", 2, "seed must not be negative"),
        (T + "seed = 9223372036854775808\n", 2, "seed must not be negative, nor 2**63 or more"),
        (T + "[sweep]\nsize = []\n", 3, "the sweep over 'size' has no value"),
        (T + "[set]\nsize = 1\n[sweep]\nsize = [2]\n", 5, "'size' is both set and swept"),
        (T + 'budget = "1m"\nsoak = "1m"\n', 3, "give --soak or --budget, not both"),
        (T + 'full = true\nsoak = "1m"\n', 3, "--soak and --full are two different runs"),
        (T + 'soak = "1m"\nsteps = 5\n', 3, "a soak ends when its time is up: leave out --steps"),
        (T + "nodes = 0\n", 2, "nodes must be between 1 and 10000, not 0"),
        (T + "seed = 1\nnodes = 2\n", 3, "several nodes need HOST:PORT of node 0, with --rendezvous"),
        (T + 'nodes = 2\nrendezvous = "here"\n', 3, "several nodes need HOST:PORT of node 0, not 'here'"),
        (T + 'rendezvous = "a:1"\n', 2, "--node-rank and --rendezvous are for several nodes; add --nodes"),
        (T + 'hosts = ["a", "b"]\nnodes = 3\n', 3, "--hosts sets the number of nodes"),
        (T + 'seed = 1\nhosts = "a,b c"\n', 3, "--hosts takes names or addresses, not 'b c'"),
        (T + "hosts = [1]\n", 2, "hosts must be a list of names or addresses, or a file of them, not [1]"),
        (T + 'remote_python = "python3"\n', 2, "add --hosts"),
        (T + '\n[slurm]\ntime = "1"\n', 3, "add --launcher slurm"),
        (T + 'launcher = "slurm"\n', 2, "add --ranks"),
        (T + 'launcher = "slurm"\nranks = 1\n[slurm]\ntime = 1\n-x = 1\n', 6, "such as partition or time, not '-x'"),
        (T + "[slurm]\ntime = [1]\n", 3, "time must be a number, text, true or false, not [1]"),
        (T + "seed = 1\nset = { size = [[1]] }\n", 3, "size must be a number, text, true or false, or a list of them"),
        (T + "set.variant = 1\nset.size = [[1]]\n", 3, "size must be a number, text, true or false, or a list of them"),
    ],
)
def test_mistakes_in_a_plan_file_are_reported_with_their_line(plan, text, line, says):
    path = plan(text)
    with pytest.raises(UsageError) as raised:
        from_toml(path)
    assert str(raised.value).startswith(f"{path}:{line}: " if line else f"{path}: ")
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (T + '[set]\nsize = "big"\n', 3, "size must be a whole number of at least 1, not 'big'"),
        (T + "[set]\nsize = 1.5\n", 3, "size must be a whole number of at least 1, not 1.5"),
        (T + "[set]\nsize = 0\n", 3, "size must be a whole number of at least 1, not 0"),
        (T + '[set]\n\nvariant = "corected"\n', 4, "variant must be one of as_published, as_intended, corrected"),
        (T + '[sweep]\nsize = [64, "x"]\n', 3, "size must be a whole number of at least 1, not 'x'"),
        (T + "[set]\nsise = 5\n", 3, "no option of tensor_add named 'sise'; did you mean 'size'?"),
        ('target = "quick"\n[set]\nsise = 5\n', 3, "no option in suite quick named 'sise'; did you mean 'size'?"),
        ('target = "tensor_ad"\n', 1, "no suite or workload named 'tensor_ad'; did you mean 'tensor_add'?"),
        (T + 'update = "plane"\n', 2, "no update named 'plane'; did you mean 'plain'?"),
        (T + 'arrangement = "singel"\n', 2, "no arrangement named 'singel'; did you mean 'single'?"),
        ('target = "quick"\nlauncher = "prozess"\n', 2, "no launcher named 'prozess'; did you mean 'process'?"),
        (T + 'device = "cuda"\n', None, "tensor_add: no cuda device here; try --device cpu"),
        (T + 'budget = "1s"\n', 2, "a budget of 1.0 s is too short"),
        (T + "full = true\n", 2, "--full is for suites"),
        (T + "set.sise = 5\n", 2, "no option of tensor_add named 'sise'; did you mean 'size'?"),
        (T + "seed = 3\nsweep = { size = [0] }\n", 3, "size must be a whole number of at least 1, not 0"),
        ('target = "memory_bandwidth"\n[set]\nworking_set = "big"\n', 3, "'big' is not a size; try 8GB or 512MiB"),
        ('target = "quick"\nseed = 1\nfull = true\n', 3, "the first minute is short by design"),
        ('target = "scaling"\nseed = 1\nsoak = "1m"\n', 3, "the scaling suite has no soak"),
        ('target = "device"\nseed = 1\narrangement = "ddp"\n', 3, "suite device chooses its own arrangement"),
        (T + 'ranks = 2\nlauncher = "inline"\n', 3, "the launcher 'inline' starts one process, not 2"),
        ('target = "gone.py:step"\n[set]\nno = 1\n', 1, "no file gone.py here"),  # which isn't about the option 'no'
        (T + "[set]\nupdate = 1\n[sweep]\nsize = [1]\n", 3, "no option of tensor_add named 'update'"),
    ],
)
def test_mistakes_that_only_the_workload_can_tell_name_the_file_too(plan, text, line, says):
    path = plan(text)
    request = from_toml(path)
    with pytest.raises(UsageError) as raised:
        expanded(request)
    assert str(raised.value).startswith(f"{path}:{line}: " if line else f"{path}: ")
    assert says in str(raised.value)


def test_the_key_of_an_error_is_a_field(plan):
    for text, key in (("repeat = 0\n", "repeat"), ("[sweep]\nsize = [0]\n", "set.size"), ('update = "x"\n', "update")):
        with pytest.raises(UsageError) as raised:
            expanded(from_toml(plan(T + text)))
        assert raised.value.key == key


@pytest.mark.parametrize(
    ("text", "flags", "expected"),
    [
        ("nodes = 2\n", {"rendezvous": "a:1", "node_rank": 1}, {"nodes": 2, "node_rank": 1, "rendezvous": "a:1"}),
        ('remote_python = "py"\n', {"hosts": "a,b"}, {"hosts": ("a", "b"), "nodes": 2, "remote_python": "py"}),
        ('launcher = "slurm"\n[slurm]\ntime = 5\n', {"ranks": 1}, {"ranks": 1, "slurm": {"time": "5"}}),
        ('hosts = ["a", "b"]\n', {"hosts": "c,d,e"}, {"hosts": ("c", "d", "e"), "nodes": 3}),
    ],
)
def test_flags_complete_what_a_plan_file_leaves_open(plan, text, flags, expected):
    request = from_flags({"target": str(plan(T + text)), **flags})
    assert {field: getattr(request, field) for field in expected} == expected


def test_flags_win_over_the_file(plan):
    path = plan(T + 'seed = 7\nrepeat = 2\nlabel = "file"\n[set]\nsize = 64\nvariant = "corrected"\n')
    flags = {"seed": 0, "label": "flag", "repeat": None, "full": False, "set": ("size=32",), "sweep": ()}
    request = from_flags({"target": str(path), **flags})
    assert (request.seed, request.repeat, request.label) == (0, 2, "flag")
    assert [cell.spec.options for cell in expanded(request).cells] == [{"size": 32, "variant": "corrected"}] * 2


def test_a_sweep_on_the_command_line_takes_the_place_of_a_setting(plan):
    request = from_flags({"target": str(plan(T + "[set]\nsize = 64\n")), "sweep": ("size=8,16",)})
    assert [cell.spec.options for cell in expanded(request).cells] == [{"size": 8}, {"size": 16}]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"set": ("size=x",)}, "size must be a whole number of at least 1, not 'x'"),
        ({"sweep": ("size=x",)}, "size must be a whole number of at least 1, not 'x'"),
        ({"repeat": 0}, "repeat must be at least 1, not 0"),
        ({"update": "plane"}, "no update named 'plane'; did you mean 'plain'?"),
        ({"soak": "1m"}, "--soak sets the length of the run: give --soak or --budget, not both"),
    ],
)
def test_a_mistake_in_a_flag_is_not_blamed_on_the_file(plan, flags, says):
    path = plan(T + 'budget = "5m"\nrepeat = 2\nupdate = "plain"\n[set]\nsize = 64\n')
    with pytest.raises(UsageError) as raised:
        expanded(from_flags({"target": str(path), **flags}))
    assert str(raised.value) == says


@pytest.mark.parametrize("flags", [{"repeat": 0}, {"threads": 0}, {"seed": -1}, {"repeat": -2}])
def test_a_flag_of_zero_is_not_overlooked(flags):
    with pytest.raises(BadValue, match=next(iter(flags))):
        from_flags({"target": "tensor_add", **flags})


@pytest.mark.parametrize("field", ["target", "label", "device"])
def test_bytes_that_are_not_utf8_are_refused(field):
    with pytest.raises(BadValue, match=f"the {field} is not UTF-8 text"):
        Request(**{field: "\udcff"})


def test_assignments_are_read_as_keys_and_values():
    assert assignments(["a=1", " b = x=y "], "--set") == {"a": "1", "b": "x=y"}
    for wrong in ("a", "=1", " =1", ""):
        with pytest.raises(BadValue, match=f"--set takes key=value, not '{wrong}'"):
            assignments([wrong], "--set")
    with pytest.raises(BadValue, match="--set gives 'a' twice"):
        assignments(["a=1", "a=2"], "--set")


def test_sweeps_are_read_as_lists():
    assert sweeps(["size=1, 2,,3", "x="]) == {"size": ("1", "2", "3"), "x": ()}
    with pytest.raises(BadValue, match="--sweep takes key=value"):
        sweeps(["size"])
    with pytest.raises(BadValue, match="the sweep over 'x' has no value"):
        Request(target="t", sweep=sweeps(["x="]))


def only_requests_come_out(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.toml"
        path.write_bytes(content)
        try:
            assert isinstance(expanded(from_toml(path)), RunPlan)
        except RigdynoError as error:
            message = str(error)
        else:
            return
        assert message.startswith(str(path))


fuzzed = settings(max_examples=150, deadline=None, derandomize=True)


@fuzzed
@given(content=st.binary(max_size=200) | st.text(alphabet="ab=[]{}\"'.\n#0 ", max_size=60).map(str.encode))
def test_any_bytes_as_a_plan_are_accepted_or_refused(content):
    only_requests_come_out(content)


KEYS = ("target", "budget", "soak", "full", "repeat", "device", "threads", "seed", "label", "update", "launcher")
WORDS = ("tensor_add", "quick", "device", "mnist_cnn", "cpu", "cuda", "cuda:1", "plain", "5m", "x.py:f", "", "a/../b")
scalars = st.one_of(
    st.sampled_from([f'"{word}"' for word in WORDS]),
    st.sampled_from(
        ["1", "0", "-1", "1e400", "nan", "inf", "true", "1979-05-27", "9" * 25, '"\\u0000"', '"\\U0001F600"']
    ),
    st.integers(1, 5).map(str),
)
entries = st.dictionaries(st.sampled_from(KEYS), scalars, max_size=4)
options = st.dictionaries(st.sampled_from(["size", "variant", "dtype", "x", '"\'"']), scalars, max_size=2)


def document(plain, given_options, swept):
    lines = [f"{key} = {value}" for key, value in plain.items()]
    lines += ["[set]", *(f"{key} = {value}" for key, value in given_options.items())]
    lines += ["[sweep]", *(f"{key} = [{value}]" for key, value in swept.items())]
    return "\n".join(lines).encode()


@fuzzed
@given(content=st.builds(document, entries, options, options))
def test_any_document_as_a_plan_is_accepted_or_refused(content):
    only_requests_come_out(content)


@fuzzed
@given(content=st.builds(document, st.fixed_dictionaries({"target": st.just('"tensor_add"')}), options, options))
def test_any_options_in_a_plan_are_accepted_or_refused(content):
    only_requests_come_out(content)


def test_a_number_that_is_too_small_is_found_in_its_line(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text('target = "device"\n\nrepeat = 0\n')
    with pytest.raises(BadValue, match=r"plan\.toml:3: repeat must be at least 1, not 0"):
        from_toml(path)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"slurm": {"partition": "x"}}, "add --launcher slurm"),
        ({"launcher": "slurm", "nodes": 2}, "add --ranks"),
        (
            {"launcher": "slurm", "ranks": 1, "slurm": {"-x": "1"}},
            "such as partition or time, not '-x'",
        ),
        ({"launcher": "slurm", "ranks": 1, "slurm": {"par tition": "1"}}, "not 'par tition'"),
        ({"launcher": "slurm", "ranks": 1, "hosts": ("a", "b"), "nodes": 2}, "leave out one of them"),
        ({"launcher": "slurm", "ranks": 1, "nodes": 2, "rendezvous": "a:1"}, "started by hand: leave it out"),
        ({"remote_python": "/x"}, "add --hosts"),
    ],
)
def test_slurm_options_that_make_no_sense_are_refused(fields, words):
    with pytest.raises(UsageError) as refusal:
        Request(target="resnet50", **fields)
    assert words in str(refusal.value)


def test_a_plan_file_may_contain_slurm_options(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(
        'target = "scaling"\nlauncher = "slurm"\nranks = 4\nnodes = 2\n[slurm]\npartition = "gpu"\ntime = 30\n'
    )
    request = from_toml(path)
    assert request.slurm == {"partition": "gpu", "time": "30"}
    given = from_flags({"target": str(path), "slurm": ("time=5", "exclusive")})
    assert given.slurm == {"partition": "gpu", "time": "5", "exclusive": ""}
