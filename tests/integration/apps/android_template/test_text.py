"""The app's tokenizer gives what `tokenizers` gives, its sampler what the runner's does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from etdeploy.apps.android.commands import JAVA_OPTIONS
from etdeploy.runner.fingerprint import runner_sources
from etdeploy.runner.generation import Sampling
from tests.support import app_tokenizers
from tests.support.android_app import App, Tools, run

pytestmark = pytest.mark.integration

_TEXTS = 400
_CHOICES, _LOGITS = 300, 700
_SAMPLINGS = (
    Sampling(),
    Sampling(temperature=1.0, seed=1),
    Sampling(temperature=0.7, top_k=40, seed=2**63 - 1),
    Sampling(temperature=1.3, top_p=0.9, seed=7),
    Sampling(temperature=0.8, top_k=1000, top_p=0.5, seed=12345678901),
    Sampling(temperature=2.0, top_p=0.99, seed=9, min_p=0.1, repetition_penalty=1.3),
    Sampling(temperature=5.0, top_k=3, top_p=0.99, seed=5),
)
_MAIN = """
#include <cstdio>
#include <cstdlib>

#include "generation/sampling.h"

int main(int, char** argv) {
  Sampler sampler(Sampling{std::atof(argv[1]), std::atoll(argv[2]), std::atof(argv[3]),
                           std::strtoull(argv[4], nullptr, 10), std::atof(argv[5]),
                           std::atof(argv[6])});
  const size_t count = std::strtoull(argv[8], nullptr, 10);
  std::vector<float> logits(count);
  std::FILE* file = std::fopen(argv[7], "rb");
  while (std::fread(logits.data(), sizeof(float), count, file) == count)
  {
    const int64_t token = sampler.choose(logits.data(), count);
    sampler.see({token});
    std::printf("%lld ", (long long)token);
  }
}
"""


@pytest.fixture(scope="module")
def answers(
    tools: Tools, generation_app: App, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What the app's classes say, in one start of a Java machine."""
    folder = tmp_path_factory.mktemp("text")
    texts = app_tokenizers.texts(_TEXTS, seed=1)
    for kind in app_tokenizers.KINDS:
        app_tokenizers.save(kind, folder)
    asked: dict[str, Any] = {
        "tokenizers": [
            {"path": str(folder / f"{kind}.json"), "texts": texts} for kind in app_tokenizers.KINDS
        ],
        "samplings": [
            sampling.model_dump() | {"logits": str(_logits(folder)), "count": _LOGITS}
            for sampling in _SAMPLINGS
        ],
    }
    (folder / "asked.json").write_text(json.dumps(asked))
    path = (generation_app.built / "classes", tools.folder / "tests", tools.framework,
            tools.standard_library)  # fmt: skip
    class_path = ":".join(map(str, path))
    run("java", *JAVA_OPTIONS, "-cp", class_path, "TextRun", generation_app.id, folder)
    found = json.loads((folder / "found.json").read_text())
    return {
        "folder": folder,
        "texts": texts,
        "tokenizers": dict(zip(app_tokenizers.KINDS, found["tokenizers"], strict=True)),
        "samplings": found["samplings"],
    }


def _logits(folder: Path) -> Path:
    """Logits of many choices; in some, several are equal, minus infinity, or far below the rest."""
    path = folder / "logits.bin"
    chance = np.random.default_rng(4)
    logits = chance.normal(0, 4, (_CHOICES, _LOGITS)).astype(np.float32)
    logits[::5] = np.round(logits[::5])
    logits[::7, ::3] = -np.inf
    logits[::11, 1:] -= 60
    path.write_bytes(logits.tobytes())
    return path


@pytest.mark.parametrize("kind", list(app_tokenizers.KINDS))
def test_tokens_and_texts_are_those_of_tokenizers(answers: dict[str, Any], kind: str) -> None:
    tokenizer = Tokenizer.from_file(str(answers["folder"] / f"{kind}.json"))
    for text, found in zip(answers["texts"], answers["tokenizers"][kind], strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert found["ids"] == ids, repr(text)
        assert found["text"] == tokenizer.decode(ids), repr(text)


@pytest.fixture(scope="module")
def runner_draws(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that draws tokens as the runner does."""
    folder = tmp_path_factory.mktemp("draws")
    (folder / "main.cpp").write_text(_MAIN)
    run("c++", "-std=c++17", '-DEXECUTORCH_VERSION="0"', "-O1", "-I", runner_sources(), "main.cpp",
        "-o", "draw", cwd=folder)  # fmt: skip
    return folder / "draw"


@pytest.mark.parametrize("index", range(len(_SAMPLINGS)))
def test_choices_are_those_of_the_runner(
    answers: dict[str, Any], index: int, runner_draws: Path
) -> None:
    logits = answers["folder"] / "logits.bin"
    wanted = run(runner_draws, *_SAMPLINGS[index].words, logits, str(_LOGITS))
    assert answers["samplings"][index] == [int(word) for word in wanted.split()]
    assert len(answers["samplings"][index]) == _CHOICES
