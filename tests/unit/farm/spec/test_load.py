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
    ("text", "facts"),
    [
        ("", ("farm.yaml:1:1", "empty")),
        ("- a", ("farm.yaml:1:1", "`recipes`")),
        ("a: [\n", ("farm.yaml:2:1", "not YAML")),
        ("a: &a [*a]", ("farm.yaml:1:4", "itself")),
    ],
)
def test_what_is_not_a_farm_yaml(text: str, facts: tuple[str, ...]) -> None:
    with pytest.raises(FarmError) as caught:
        load(text)
    assert all(fact in str(caught.value) for fact in facts)


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
    ("devices", "facts"),
    [
        ("{a b: {kind: host}}", ("1:11: 'a b'",)),
        ("{a: {}}", ("devices.a", '{name: "*"}')),
        ("{a: {kind: andriod}}", ("'andriod'", "'android'?")),
        ("{a: {target: linux}}", ("devices.a.target", "'linux'")),
        ("{a: {name: R5CT20XYZ}}", ("android:R5CT20XYZ",)),
        ("{a: {name: 'host:x'}}", ("host", "serial number")),
        ("{a: {kind: host, take: 0}}", ("devices.a.take", "equal to 1")),
        ("{a: {pool: nihgtly}}\npools: {nightly: [host]}", ("'nihgtly'", "'nightly'?")),
        ("{a: {pool: x}}", ("devices.a.pool", "'x'", "none")),
        ("{a: {cpu_count: 0}}", ("devices.a.cpu_count", "a comparison")),
        ("{a: {os: '>=x'}}", ("devices.a", "'x'", "'>=14'")),
        ("{a: host}", ("devices.a", "'host'")),
    ],
)
def test_devices_that_cannot_be_meant(devices: str, facts: tuple[str, ...]) -> None:
    [found] = problems(f"devices: {devices}\n" + RECIPES)
    assert all(fact in found for fact in facts)


def test_a_pool_may_be_another_host_s() -> None:
    text = RECIPES + "devices: {a: {pool: x}}\nhosts: {listen: 'tcp://127.0.0.1:8786'}\n"
    assert load(text).farm.hosts == Hosts(listen="tcp://127.0.0.1:8786")


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("matrix: {default: none}", ("matrix", "empty")),
        ("matrix: {exclude: [{device: '*'}]}", ("matrix", "empty")),
        ("matrix: {exclude: [{device: phone}]}", ("'phone'", "'phones'?")),
        ("matrix: {include: [{recipe: xnpack}]}", ("'xnpack'", "'xnnpack'?")),
        ("matrix: {include: [{}]}", ("neither a recipe",)),
        ("matrix: {default: some}", ("matrix.default", "all or none", "'some'")),
        ("repeats: 2.5", ("repeats", "whole number, not 2.5")),
        ('window: {from: "22:00", until: "22:00"}', ("no length", '"24:00"')),
        ('window: {from: "22:00"}', ("window.until", 'until: "22:00"')),
        ('window: {from: "22:00", until: "6"}', ("window.until", "'6'")),
        ("gates: {battery_percent: 300}", ("gates.battery_percent", "100, not 300")),
        ("gates: {free: lots}", ("gates.free", "'lots'", "2 GB")),
        ("gates: {free: 2 XB}", ("gates.free", "'2 XB'")),
        ("limit_s: 0", ("limit_s", "than 0")),
        ("baseline: other", ("baseline", "main or last-good", "'other'")),
        ("notify: [{command: [cat]}]", ("'notify'", "on_end: [PROGRAM")),
        ("on_end: mail x", ("on_end", "list of words", "'mail x'")),
        ("on_end: [cat, 1]", ("on_end", "list of words")),
        ("on_end: [no-such-program]", ("on_end", "'no-such-program'", "install it")),
        ("on_end: [cat x]", ("'cat x'", "first word")),
        ("on_end: [./full/other]", ("'./full/other'",)),
        ("store: none", ("store: ", "history")),
        ("store: mysql://a", ("store: ", "SQLite or PostgreSQL")),
        ("hosts: {listen: 'tcp://0.0.0.0:8786'}", ("reaches 0.0.0.0 ", "tls://")),
        ("hosts: {listen: 'tcp://farm.example:8786'}", ("farm.example", "tls://")),
        ("hosts: {listen: 'tls://0.0.0.0:8786'}", ("hosts.listen", "tls: {ca: ca.pem")),
        ("hosts: {listen: '0.0.0.0:8786'}", ("hosts.listen", "tls://ADDRESS:PORT")),
        ("hosts: {listen: 'tls://a:99999'}", ("hosts.listen", "tls://ADDRESS:PORT")),
        ("hosts: {listen: 'tls://a'}", ("hosts.listen", "tls://ADDRESS:PORT")),
        ("hosts: {}", ("'hosts.listen'", "missing")),
        ("results: farm.yaml", ("farm.yaml is a file",)),
        ("results: farm.yaml/below", ("be below",)),
        ("results: .", ("folder of this file",)),
        ("results: full", ("results", "no farm wrote: other")),
        ("reports: {html: full}", ("reports.html", "a file, and")),
        ("reports: {html: a/b.html}", ("exist", "a file in")),
        ("reports: {html: farm-results/a/b.html}", ("farm-results/a", "exist")),
        ("reports: {dashboard: farm.yaml}", ("reports.dashboard", "a folder, and")),
        ("reports: {dashboard: a/b}", ("exist", "a folder in")),
        ("reports: {html: a, junit: ./a}", ("reports.html", "reports.junit")),
        ("pools: {a b: [host]}", ("'a b'", "pools")),
        ("pools: {a: [hots]}", ("pools.a.0", "'hots'", "mean host?")),
        ("pools: {a: host}", ("pools.a", "list of words", "'host'")),
    ],
)
def test_values_that_cannot_be_meant(text: str, facts: tuple[str, ...]) -> None:
    Path("full").mkdir()
    Path("full/other").write_text("")
    found = problem(text)
    assert all(fact in found for fact in facts)


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
