"""farm.yaml: what is read, and the exact text for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core.errors import FarmError, UsageError
from etdeploy.farm.model import Gates
from etdeploy.farm.spec.load import load_farm
from etdeploy.farm.spec.model import Farm, Hosts, LoadedFarm, Window
from etdeploy.farm.spec.written import MARK, prepare_results

RECIPES = "recipes: [xnnpack]\n"
DEVICES = "devices: {phones: {kind: android}}\n"
SMALLEST = RECIPES + DEVICES


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str) -> LoadedFarm:
    Path("farm.yaml").write_text(text)
    return load_farm(Path("farm.yaml"))


def farm(text: str) -> Farm:
    return load(SMALLEST + text).farm


def problems(text: str) -> list[str]:
    with pytest.raises(FarmError) as caught:
        load(text)
    assert caught.value.exit_code == 2
    return [str(problem).removeprefix("farm.yaml:") for problem in caught.value.problems]


def problem(text: str) -> str:
    """What is wrong with a key below the smallest farm.yaml."""
    [found] = problems(SMALLEST + text)
    return found


def test_the_smallest_farm_has_defaults_for_the_rest(folder: Path) -> None:
    loaded = load(SMALLEST)
    assert loaded.farm.name == "farm"
    assert loaded.farm.pairs == (("xnnpack", "phones"),)
    assert (loaded.farm.repeats, loaded.farm.window, loaded.farm.gates) == (3, None, Gates())
    assert loaded.farm.results == folder / "farm-results"
    assert loaded.path == folder / "farm.yaml"
    assert list(loaded.recipes) == ["xnnpack"]


def test_a_farm_as_people_write_it(folder: Path) -> None:
    Path("recipes").mkdir()
    Path("tell").touch(0o755)
    Path("recipes/own.yaml").write_text("model: {example: mlp}\n")
    loaded = load(
        """
name: nightly
recipes: [recipes/own.yaml, {recipe: xnnpack, set: [benchmark.runs=3], label: conv}]
devices:
  flagship: {soc: SM8650, os: ">=14", pool: nightly}
  any-pixel: {model: "Pixel*", take: 1}
  bench: {name: "android:R5CT20XYZ"}
matrix: {include: [{recipe: conv, device: flagship}], exclude: [{recipe: o*, device: "*p*"}]}
window: {from: "22:00", until: "06:00", timezone: Europe/Berlin}
gates: {battery_percent: 30, temperature_celsius: 38, free: 2 GB, wait_s: 60}
results: out
reports: {junit: out/night.xml, markdown: night.md}
on_end: [./tell, a b]
store: nights.db
baseline: main
pools: {nightly: ["android:R5CT20XYZ"]}
"""
    )
    read = loaded.farm
    assert read.name == "nightly"
    assert read.pairs == (
        ("own", "bench"), ("conv", "flagship"), ("conv", "any-pixel"), ("conv", "bench"),
    )  # fmt: skip
    assert loaded.recipes["conv"].recipe.benchmark.runs == 3
    assert loaded.recipes["conv"].name == "xnnpack"
    assert read.groups["any-pixel"].take == 1
    assert read.window == Window(from_minute=1320, until_minute=360, timezone="Europe/Berlin")
    assert read.gates == Gates(
        battery_percent=30, temperature_celsius=38, free_bytes=2_000_000_000, wait_s=60
    )
    assert (read.results, read.store) == (folder / "out", str(folder / "nights.db"))
    assert (read.reports.junit, read.reports.markdown) == (
        folder / "out/night.xml",
        folder / "night.md",
    )
    assert read.on_end == (str(folder / "tell"), "a b")
    assert read.baseline == "main"
    assert read.pools == {"nightly": ("android:R5CT20XYZ",)}


def test_paths_of_overrides_are_relative_to_the_file(folder: Path) -> None:
    Path("there").mkdir()
    Path("there/make.py").write_text("")
    text = "recipes: [{recipe: xnnpack, set: ['model={python: make.py:make}']}]\n" + DEVICES
    Path("there/farm.yaml").write_text(text)
    loaded = load_farm(Path("there/farm.yaml"))
    assert loaded.recipes["xnnpack"].recipe.model.python == f"{folder}/there/make.py:make"


def test_boards_that_groups_name_are_looked_for() -> None:
    text = RECIPES + "devices: {pi: {name: 'ssh:pi@board'}, any: {name: 'ssh:*'}}\n"
    assert load(text).farm.pools == {"named": ("ssh:pi@board",)}
    listen = "hosts: {listen: 'tcp://127.0.0.1:8786'}\n"
    assert load(text + listen).farm.pools == {}


def test_every_problem_is_told_at_its_place_with_those_of_recipes() -> None:
    Path("own.yaml").write_text("model: {example: mpl}\n")
    assert problems(
        """
recipes: [own.yaml, xnnpak, {recipe: portable, set: [benchmark.runs=x], lable: a}]
devices:
  phones: {soc: SM8650, os: 14}
repeats: 0
window: {from: "22:00", until: 06:00, timezone: Europe/Berln}
reprots: {html: a}
"""
    ) == [
        "2:73: unknown key 'recipes.2.lable' (did you mean 'label'?)",
        "4:25: devices.phones.os takes text, not 14 (put it in quotes)",
        "5:1: repeats should be greater than or equal to 1, not 0",
        "6:39: window.timezone: there is no time zone 'Europe/Berln' (did you mean Europe/Berlin?)",
        "7:1: unknown key 'reprots' (did you mean 'reports'?)",
        "own.yaml:1:9: model.example takes mlp, convnet, encoder or transformer, not 'mpl' "
        "(did you mean 'mlp'?)",
        "2:21: there is no such recipe: 'xnnpak' (did you mean 'xnnpack'?)",
        "2:54 benchmark.runs: benchmark.runs takes a whole number, not 'x'",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "farm.yaml:1:1: the file is empty"),
        ("- a", "farm.yaml:1:1: a farm.yaml is a mapping with the key `recipes`"),
        ("a: 1\n---\nb: 1", "farm.yaml:2:1: a second document starts here (a farm.yaml is one"),
        ("a: [\n", "farm.yaml:2:1: this is not YAML"),
        ("a: &a [*a]", "farm.yaml:1:4: this value contains itself"),
        ("a: !!python/object:os.system x", "values are not supported"),
        ("x: " + "[" * 70, "farm.yaml:1:67: more than 64 levels deep"),
    ],
)
def test_what_is_no_farm_yaml(text: str, expected: str) -> None:
    with pytest.raises(FarmError) as caught:
        load(text)
    assert expected in str(caught.value)


def test_a_bomb_of_aliases_is_refused() -> None:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    with pytest.raises(FarmError, match="the file contains too many values"):
        load("\n".join(lines))


def test_aliases_and_merges_are_as_in_recipes() -> None:
    read = load(RECIPES + "devices:\n  a: &a {kind: android}\n  b: {<<: *a, soc: X}\n").farm
    assert [len(group.conditions) for group in read.groups.values()] == [1, 2]


def test_no_file_and_a_folder() -> None:
    Path("night.yaml").write_text("")
    with pytest.raises(UsageError, match=r"there is no such file\n.*Did you mean night.yaml"):
        load_farm(Path("nigt.yaml"))
    with pytest.raises(UsageError, match=r"no such file\n.*etdeploy farm init"):
        load_farm(Path("farm.yaml"))
    with pytest.raises(UsageError, match="this is a folder"):
        load_farm(Path())


def test_missing_and_empty_sections() -> None:
    assert problems("name: a\n") == [
        "1:1: the key 'recipes' is missing (e.g. recipes: [xnnpack])",
        "1:1: the key 'devices' is missing (e.g. devices: {phones: {kind: android}})",
    ]
    assert problems("recipes: []\n" + DEVICES) == [
        "1:1: the key 'recipes' is empty (e.g. recipes: [xnnpack])"
    ]


def test_labels_that_are_equal() -> None:
    [found] = problems("recipes: [xnnpack, {recipe: portable, label: xnnpack}]\n" + DEVICES)
    assert found == (
        "1:39: two recipes have the label 'xnnpack', the other one at farm.yaml:1:11 "
        "(give one another: {recipe: portable, label: xnnpack-2})"
    )


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("{a b: {kind: host}}", "1:11: 'a b' cannot be a name in devices"),
        ("{a: {}}", 'devices.a: the group names no property (every device is {name: "*"})'),
        ("{a: {kind: andriod}}", "there is no kind 'andriod' (did you mean 'android'?)"),
        ("{a: {target: linux}}", "devices.a.target: there is no target 'linux'"),
        ("{a: {name: R5CT20XYZ}}", "A serial number is written android:R5CT20XYZ"),
        ("{a: {name: 'host:x'}}", "the device host takes no serial number"),
        ("{a: {kind: host, take: 0}}", "devices.a.take should be greater than or equal to 1"),
        ("{a: {pool: nihgtly}}\npools: {nightly: [host]}", "(did you mean 'nightly'?)"),
        ("{a: {pool: x}}", "devices.a.pool: there is no pool 'x' (there are: none)"),
        ("{a: {cpu_count: 0}}", "devices.a.cpu_count takes a number, or a comparison"),
        ("{a: {os: '>=x'}}", "devices.a: os: 'x' is not a version (e.g. '>=14')"),
        ("{a: host}", "devices.a takes a mapping of keys, not 'host'"),
    ],
)
def test_devices_that_cannot_be_meant(devices: str, expected: str) -> None:
    [found] = problems(f"devices: {devices}\n" + RECIPES)
    assert expected in found


def test_a_pool_may_be_another_host_s() -> None:
    text = RECIPES + "devices: {a: {pool: x}}\nhosts: {listen: 'tcp://127.0.0.1:8786'}\n"
    assert load(text).farm.hosts == Hosts(listen="tcp://127.0.0.1:8786")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("matrix: {default: none}", "the matrix is empty: no recipe is measured on any device"),
        ("matrix: {exclude: [{device: '*'}]}", "the matrix is empty"),
        ("matrix: {exclude: [{device: phone}]}", "there is no group of devices 'phone' (did you"),
        ("matrix: {include: [{recipe: xnpack}]}", "no recipe 'xnpack' (did you mean 'xnnpack'?)"),
        ("matrix: {include: [{}]}", "the entry names neither a recipe nor a device"),
        ("matrix: {default: some}", "matrix.default takes all or none, not 'some'"),
        ("repeats: 0", "repeats should be greater than or equal to 1, not 0"),
        ("repeats: 2.5", "repeats takes a whole number, not 2.5"),
        ('window: {from: "22:00", until: "22:00"}', "the window has no length"),
        ('window: {from: "22:00"}', 'window.until is missing (e.g. until: "22:00")'),
        ("window: {from: 22:00, until: '06:00'}", 'takes a time in quotes, like "22:00"'),
        ('window: {from: "22:00", until: "6"}', "window.until: '6' is not a time"),
        ("gates: {battery_percent: 300}", "gates.battery_percent should be less than"),
        ("gates: {free: lots}", "gates.free: 'lots' is not a size (e.g. 2 GB)"),
        ("gates: {free: 2 XB}", "gates.free: '2 XB' is not a size"),
        ("limit_s: 0", "limit_s should be greater than 0"),
        ("baseline: other", "baseline takes all, main or last-good, not 'other'"),
        ("notify: [{command: [cat]}]", "'notify' was replaced by 'on_end' (write on_end: ["),
        ("on_end: mail x", "on_end takes a list of words, not 'mail x'"),
        ("on_end: [cat, 1]", "on_end takes a list of words"),
        ("on_end: [no-such-program]", "there is no program 'no-such-program' (install it"),
        ("on_end: [cat x]", "'cat x' (the first word is the program)"),
        ("on_end: [./full/other]", "there is no program './full/other'"),
        ("store: none", "a farm keeps its nights in the history"),
        ("store: mysql://a", "a history is kept in SQLite or PostgreSQL"),
        ("hosts: {listen: 'tcp://0.0.0.0:8786'}", "tcp:// lets whoever reaches 0.0.0.0 run code"),
        ("hosts: {listen: 'tcp://[::]:8786'}", "tcp:// lets whoever reaches :: run code"),
        ("hosts: {listen: 'tcp://farm.example:8786'}", "tls://"),
        ("hosts: {listen: 'tls://0.0.0.0:8786'}", "hosts.listen: TLS needs certificates"),
        ("hosts: {listen: '0.0.0.0:8786'}", "hosts.listen takes tls://ADDRESS:PORT"),
        ("hosts: {listen: 'tls://a:99999'}", "hosts.listen takes tls://ADDRESS:PORT"),
        ("hosts: {listen: 'tls://a'}", "hosts.listen takes tls://ADDRESS:PORT"),
        ("hosts: {}", "the key 'hosts.listen' is missing"),
        ("results: farm.yaml", "farm.yaml is a file (name a folder of its own)"),
        ("results: farm.yaml/below", "would be below"),
        ("results: .", "is or contains the folder of this file"),
        ("results: full", "contains what no farm wrote: other (name a folder of its own)"),
        ("reports: {html: full}", "reports.html takes a file, and"),
        ("reports: {html: a/b.html}", "does not exist (create it, or name a file in"),
        ("reports: {html: farm-results/a/b.html}", "farm-results/a does not exist (create it"),
        ("reports: {dashboard: farm.yaml}", "reports.dashboard takes a folder, and"),
        ("reports: {dashboard: a/b}", "does not exist (create it, or name a folder in"),
        ("pools: {a b: [host]}", "'a b' cannot be a name in pools"),
        ("pools: {a: [hots]}", "pools.a.0: there is no device 'hots' (Did you mean host?)"),
        ("pools: {a: host}", "pools.a takes a list of words, not 'host'"),
    ],
)
def test_values_that_cannot_be_meant(text: str, expected: str) -> None:
    Path("full").mkdir()
    Path("full/other").write_text("")
    assert expected in problem(text)


def test_a_time_without_quotes_is_told_wherever_it_is() -> None:
    # YAML 1.1 reads it as 22 times 60.
    assert problem("window: {from: 22:00, until: '06:00'}\n") == (
        '3:10: window.from takes a time in quotes, like "22:00", not 1320'
    )


def test_the_dashboard_of_an_earlier_night_is_there(folder: Path) -> None:
    Path("farm-results/pages").mkdir(parents=True)
    Path("farm-results/.etdeploy-farm").write_text("")
    read = load("recipes: [xnnpack]\ndevices: {here: {name: host}}\n"
                "reports: {dashboard: farm-results/pages}\n")  # fmt: skip
    assert read.farm.reports.dashboard == folder / "farm-results/pages"


def test_two_reports_in_one_file() -> None:
    assert "this is the file of reports.html, too" in problem("reports: {html: a, junit: ./a}")


def test_certificates(folder: Path) -> None:
    for name in ("ca.pem", "host.pem"):
        Path(name).write_text("")
    section = "hosts: {listen: 'SCHEME://0.0.0.0:1', tls: {ca: ca.pem, cert: host.pem, key: KEY}}"
    text = section.replace("SCHEME", "tls")
    assert problem(text.replace("KEY", "key.pem")).endswith(
        f"hosts.tls.key: the file {folder}/key.pem is missing"
    )
    assert "is a folder" in problem(text.replace("KEY", "."))
    Path("key.pem").write_text("")
    lists = text.replace("KEY", "key.pem, crl: crl.pem")
    assert problem(lists).endswith(f"hosts.tls.crl: the file {folder}/crl.pem is missing")
    Path("crl.pem").write_text("")
    listed = farm(lists).hosts
    assert listed
    assert listed.tls
    assert listed.tls.crl == folder / "crl.pem"
    hosts = farm(text.replace("KEY", "key.pem")).hosts
    assert hosts
    assert hosts.tls
    assert (hosts.tls.key, hosts.tls.crl) == (folder / "key.pem", None)
    assert "tcp:// uses no certificates" in problem(
        section.replace("SCHEME", "tcp").replace("KEY", "key.pem")
    )


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "[::1]", "127.1.2.3"])
def test_tcp_is_for_this_machine_alone(address: str) -> None:
    assert farm(f"hosts: {{listen: 'tcp://{address}:8786'}}").hosts


def test_the_folder_for_results_is_known_again(folder: Path) -> None:
    results = folder / "farm-results"
    prepare_results(results, folder)
    (results / "night").mkdir()
    assert (results / MARK).is_file()
    assert (results / ".gitignore").read_text() == "*\n"
    assert load(SMALLEST).farm.results == results
    prepare_results(results, folder)
    (results / MARK).unlink()
    with pytest.raises(UsageError, match="contains what no farm wrote: night") as caught:
        prepare_results(results, folder)
    assert "in farm.yaml: results: FOLDER" in str(caught.value.remedy)
    with pytest.raises(UsageError) as caught:
        prepare_results(results, folder, "-o")
    assert caught.value.remedy == "Name a folder of its own: -o FOLDER"
