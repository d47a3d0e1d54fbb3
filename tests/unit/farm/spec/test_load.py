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
    found = problems(
        """
recipes: [own.yaml, xnnpak, {recipe: portable, set: [benchmark.runs=x], lable: a}]
devices:
  phones: {soc: SM8650, os: 14}
repeats: 0
window: {from: "22:00", until: 06:00, timezone: Europe/Berln}
reprots: {html: a}
"""
    )
    facts = (
        ("2:73: ", "recipes.2.lable", "'label'"),
        ("4:25: ", "devices.phones.os", "14", "quotes"),
        ("5:1: ", "repeats", "1, not 0"),
        ("6:39: ", "window.timezone", "'Europe/Berln'", "Europe/Berlin?"),
        ("7:1: ", "'reprots'", "'reports'"),
        ("own.yaml:1:9: ", "model.example", "'mpl'", "'mlp'?"),
        ("2:21: ", "'xnnpak'", "'xnnpack'?"),
        ("2:54 benchmark.runs: ", "'x'"),
    )
    for text, (place, *others) in zip(found, facts, strict=True):
        assert text.startswith(place)
        assert all(each in text for each in others)


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
    with pytest.raises(FarmError, match="too many values"):
        load("\n".join(lines))


def test_aliases_and_merges_are_as_in_recipes() -> None:
    read = load(RECIPES + "devices:\n  a: &a {kind: android}\n  b: {<<: *a, soc: X}\n").farm
    assert [len(group.conditions) for group in read.groups.values()] == [1, 2]


def test_no_file_and_a_folder() -> None:
    Path("night.yaml").write_text("")
    for path, fact in (
        ("nigt.yaml", "mean night.yaml?"),
        ("farm.yaml", "etdeploy farm init"),
        (".", "a folder"),
    ):
        with pytest.raises(UsageError) as caught:
            load_farm(Path(path))
        assert caught.value.place == path
        assert fact in str(caught.value)


def test_missing_and_empty_sections() -> None:
    for text, *keys in (
        ("name: a\n", "recipes", "devices"),
        ("recipes: []\n" + DEVICES, "recipes"),
    ):
        found = problems(text)
        assert [each[:12] for each in found] == ["1:1: the key"] * len(keys)
        assert all(f"e.g. {key}: " in each for each, key in zip(found, keys, strict=True))


def test_labels_that_are_equal() -> None:
    [found] = problems("recipes: [xnnpack, {recipe: portable, label: xnnpack}]\n" + DEVICES)
    assert found.startswith("1:39: ")
    assert "farm.yaml:1:11" in found
    assert "label: xnnpack-2}" in found


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
    found = problem("window: {from: 22:00, until: '06:00'}\n")
    assert found.startswith("3:10: window.from takes")
    assert '"22:00", not 1320' in found


def test_the_dashboard_of_an_earlier_night_is_there(folder: Path) -> None:
    Path("farm-results/pages").mkdir(parents=True)
    Path("farm-results/.etdeploy-farm").write_text("")
    read = load("recipes: [xnnpack]\ndevices: {here: {name: host}}\n"
                "reports: {dashboard: farm-results/pages}\n")  # fmt: skip
    assert read.farm.reports.dashboard == folder / "farm-results/pages"


def test_two_reports_in_one_file() -> None:
    found = problem("reports: {html: a, junit: ./a}")
    assert "reports.junit" in found
    assert "reports.html" in found


def test_certificates(folder: Path) -> None:
    for name in ("ca.pem", "host.pem", "key.pem", "crl.pem"):
        Path(name).write_text("")

    def text(key: str = "key.pem", more: str = "", scheme: str = "tls") -> str:
        tls = f"{{ca: ca.pem, cert: host.pem, key: {key}{more}}}"
        return f"hosts: {{listen: '{scheme}://0.0.0.0:1', tls: {tls}}}"

    for more, crl in (("", None), (", crl: crl.pem", folder / "crl.pem")):
        hosts = farm(text(more=more)).hosts
        assert hosts
        assert hosts.tls
        assert (hosts.tls.key, hosts.tls.crl) == (folder / "key.pem", crl)
    for bad, facts in (
        (text(key="none.pem"), ("hosts.tls.key", f"{folder}/none.pem", "missing")),
        (text(key="."), ("hosts.tls.key", "a folder")),
        (text(more=", crl: none.pem"), ("hosts.tls.crl", f"{folder}/none.pem", "missing")),
        (text(scheme="tcp"), ("hosts.listen", "tls://0.0.0.0:1")),
    ):
        assert all(fact in problem(bad) for fact in facts)


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
    for option, remedy in ((), "results: FOLDER"), (("-o",), "-o FOLDER"):
        with pytest.raises(UsageError, match="no farm wrote: night") as caught:
            prepare_results(results, folder, *option)
        assert caught.value.place == str(results)
        assert str(caught.value.remedy).endswith(remedy)
