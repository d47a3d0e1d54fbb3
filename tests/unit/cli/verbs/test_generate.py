"""etdeploy generate: prompts, and what is refused before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etdeploy.cli import main as cli_main
from etdeploy.core.errors import UsageError
from etdeploy.program.tokenizer import Tokenizer
from etdeploy.session.text import prompt_ids
from tests.support.facts import lacks
from tests.support.tokenizers import byte_level

Capture = pytest.CaptureFixture[str]


def test_a_prompt_is_text_for_a_tokenizer_and_ids_without_one() -> None:
    tokenizer = Tokenizer(Path("tokenizer"), byte_level())
    assert len(prompt_ids(tokenizer, "1 2")) == 3
    assert prompt_ids(None, "1, 2 30\n") == (1, 2, 30)
    with pytest.raises(UsageError, match="'Once upon'"):
        prompt_ids(None, "Once upon")


@pytest.mark.parametrize("verb", [["generate", "--prompt", "x"], ["chat"]])
def test_a_recipe_without_a_language_model_is_refused_at_once(
    verb: list[str], capsys: Capture
) -> None:
    assert cli_main.run_cli([*verb, "--recipe", "portable"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error (usage): portable: ")
    assert "--model ID_OR_PATH" in err


@pytest.mark.parametrize("verb", [["generate", "--prompt", "x"], ["chat"]])
def test_text_is_generated_with_the_recipe_for_it_by_default(
    verb: list[str], capsys: Capture
) -> None:
    assert cli_main.run_cli([*verb, "--help"]) == 0
    assert "[default: llm-xnnpack;" in capsys.readouterr().out


def test_a_program_is_for_one_image(capsys: Capture) -> None:
    given = ["--model", "a/b", "--image", "one.png", "--image", "two.png", "--text", "What?"]
    assert cli_main.run_cli(["generate", *given]) == 2
    assert not lacks(capsys.readouterr().err, "--image is given 2 times", "once for each")


def test_an_empty_text_is_a_text(capsys: Capture) -> None:
    assert cli_main.run_cli(["generate", "--model", "a/b", "--text", ""]) == 2
    assert "benchmark.input.text should have at least 1 character" in capsys.readouterr().err


@pytest.mark.parametrize("given", [[], ["--prompt", "x", "--text", "y"]])
def test_a_text_follows_from_a_prompt_or_from_an_input(given: list[str], capsys: Capture) -> None:
    assert cli_main.run_cli(["generate", *given]) == 2
    assert not lacks(capsys.readouterr().err, "--prompt TEXT", "--audio FILE.wav")


def test_a_model_with_an_encoder_takes_no_prompt(tmp_path: Path, capsys: Capture) -> None:
    config = {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for verb in (["generate", "--prompt", "x"], ["chat"]):
        assert cli_main.run_cli([*verb, "--model", str(tmp_path)]) == 2
        assert not lacks(capsys.readouterr().err, "no prompt", "--text TEXT", "--audio FILE.wav")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--temperature", "-1"), ("--top-p", "0"), ("--top-k", "1.5"), ("--max-new-tokens", "0")],
)
def test_what_no_sampling_can_do_is_refused(option: str, value: str, capsys: Capture) -> None:
    assert cli_main.run_cli(["generate", "--prompt", "x", option, value]) == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--top-k", "1", "--temperature 0.8"),
        ("--top-p", "1", "--temperature 0.8"),
        ("--min-p", "1", "--temperature 0.8"),
        ("--temperature", "inf", "finite"),
    ],
)
def test_sampling_options_that_a_recipe_does_not_allow(
    option: str, value: str, message: str, capsys: Capture, tmp_path: Path
) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("model: {hf: some/model}\n")
    arguments = ["generate", "--prompt", "x", "--recipe", str(recipe), option, value]
    assert cli_main.run_cli(arguments) == 2
    shown = capsys.readouterr().err
    assert option in shown
    assert message in shown
