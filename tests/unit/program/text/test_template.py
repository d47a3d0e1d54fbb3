"""The model's own chat template, in a sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.program.tokenizer import ChatTemplate, load_template
from tests.support.tokenizers import byte_level, save

_MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Hello  "},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": "Bye"},
]


def _rendered(source: str, **tokens: str) -> str:
    return ChatTemplate(source, tokens, "chat_template.jinja").render(_MESSAGES)


def test_the_model_is_to_go_on_after_the_conversation(tmp_path: Path) -> None:
    template = load_template(save(byte_level(), tmp_path))
    assert template is not None
    assert template.render(_MESSAGES) == (
        "<s><|system|>Be brief.<|end|>\n<|user|>Hello<|end|>\n<|assistant|>Hi<|end|>\n"
        "<|user|>Bye<|end|>\n<|assistant|>"
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ("{{ eos_token }}", "</s>"),
        ([{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}], "y"),
        ([{"name": "tool_use", "template": "x"}], None),
        (None, None),
    ],
)
def test_a_template_may_be_in_the_tokenizers_settings(
    tmp_path: Path, found: object, expected: str | None
) -> None:
    config = {"eos_token": "</s>", "chat_template": found}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    template = load_template(tmp_path)
    assert (template and template.render(_MESSAGES)) == expected


@pytest.mark.parametrize(
    ("source", "text"),
    [
        # Blocks take no line of their own.
        ("{% for m in [1, 2] %}\n  {% if loop.first %}{{ m }}\n  {% endif %}\n{% endfor %}", "1\n"),
        ("{% for m in [1, 2] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("{% generation %}said{% endgeneration %}", "said"),
        ("{{ {'a': '<\u00e9>'} | tojson }}", '{"a": "<\u00e9>"}'),
        (
            "{% set ns = namespace(n=1) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
            "{% endfor %}{{ ns.n }}",
            "5",
        ),
        ("{{ tools is none }}{{ dict(a=1).a }}{{ range(3) | list }}", "True1[0, 1, 2]"),
        ("{{ strftime_now('%d') | length }}", "2"),
    ],
)
def test_templates_have_what_transformers_gives_them(source: str, text: str) -> None:
    assert _rendered(source) == text


def test_a_template_that_refuses_is_told_with_its_words() -> None:
    source = "{{ raise_exception('Roles must alternate') }}"
    with pytest.raises(UsageError, match="Roles must alternate"):
        _rendered(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ '%s'.format.__self__.upper() }}",
        "{{ range(1000000000) | list }}",
        "{% include '/etc/passwd' %}",
        "{% if %}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_reaches_nothing_else(source: str) -> None:
    with pytest.raises(UsageError):
        _rendered(source)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer_config.json"
    path.write_text("{")
    with pytest.raises(UsageError, match="it is not JSON") as caught:
        load_template(tmp_path)
    assert caught.value.place == str(path)
