"""Speculation pays where a text repeats, costs next to nothing elsewhere, and draws as ever."""

from __future__ import annotations

import itertools
import random
import re
import shutil
import statistics
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from etdeploy.runner.fingerprint import runner_sources

pytestmark = pytest.mark.integration

# A text is generated with a clock that goes by what calls cost, in single tokens.
_MAIN = """
#include <cstdio>
#include <cstdlib>

#include "generation/speculation.h"

static std::vector<int64_t> read() {
  size_t count = 0;
  std::scanf("%zu", &count);
  std::vector<int64_t> ids(count);
  for (int64_t& id : ids) std::scanf("%ld", &id);
  return ids;
}

int main(int, char** argv) {
  const double two = std::atof(argv[1]), eight = std::atof(argv[2]), sixteen = std::atof(argv[3]);
  const auto cost = [&](size_t size) {
    const double d = static_cast<double>(size);
    return size == 1 ? 1 : size <= 8 ? two + (eight - two) * (d - 2) / 6
                                     : eight + (sixteen - eight) * (d - 8) / 8;
  };
  const std::vector<int64_t> prompt = read(), text = read();
  Lookup lookup;
  Pace pace;
  lookup.restart({}, prompt);
  pace.restart();
  double time = 0;
  size_t calls = 0, proposed = 0, accepted = 0;
  for (size_t i = 0; i + 1 < text.size(); ++calls) {
    lookup.add(text[i]);
    const size_t most = std::min<size_t>(text.size() - 1 - i, 16) - 1;
    const size_t matched = most > 0 ? lookup.find() : 0;
    const size_t count = pace.proposed(matched, most);
    if (count == 0) {
      time += 1;
      pace.add_single(1e6, matched, lookup.proposes(text[++i]));
      continue;
    }
    std::vector<int64_t> tokens;
    lookup.propose(count, tokens);
    size_t right = 0;
    while (right < count && tokens[right] == text[i + 1 + right]) {
      lookup.add(tokens[right++]);
    }
    time += cost(count + 1);
    pace.add_verified(matched, count, right, cost(count + 1) * 1e6);
    proposed += count;
    accepted += right;
    i += right + 1;
  }
  std::printf("%g %zu %zu %zu", (static_cast<double>(text.size()) - 1) / time, calls, proposed,
              accepted);
}
"""


# The same with a draft, of whose proposals each is right so often as is given for its text.
_DRAFTED = """
#include <cstdio>
#include <cstdlib>
#include <random>

#include "generation/speculation.h"

int main(int argc, char** argv) {
  const double two = std::atof(argv[1]), eight = std::atof(argv[2]), sixteen = std::atof(argv[3]);
  const double drafting = std::atof(argv[4]);
  // Times of tokens in the middle of a text, and the share of calls that take twice as long.
  const double slower = std::atof(argv[5]), disturbed = std::atof(argv[6]);
  const auto cost = [&](size_t size) {
    const double d = static_cast<double>(size);
    return size == 1 ? 1 : size <= 8 ? two + (eight - two) * (d - 2) / 6
                                     : eight + (sixteen - eight) * (d - 8) / 8;
  };
  Pace pace;
  std::mt19937 chance(4);
  std::uniform_real_distribution<double> draw(0, 1);
  for (int text = 7; text < argc; ++text) {
    pace.restart();
    double time = 0, plain = 0, behind = 0;
    size_t tokens = 0, proposed = 0, accepted = 0;
    const double each = std::atof(argv[text]);
    const bool promises = pace.promises();
    while (tokens < 400) {
      const double now = (tokens >= 100 && tokens < 250 ? slower : 1) *
                         (disturbed > 0 && draw(chance) < disturbed ? 2 : 1);
      const size_t count =
          pace.proposed(Pace::kDrafted, 15, behind > 2 ? now * 0.04 * behind * 1e6 : 0);
      if (count == 0) {
        time += now;
        plain += now;
        tokens += 1;
        behind += 1;
        pace.add_single(now * 1e6);
        continue;
      }
      const double late = behind > 2 ? 0.04 * behind : 0, own = drafting * count;
      behind = 0;
      size_t right = 0;
      while (right < count && draw(chance) < each) ++right;
      const double took = now * (cost(count + 1) + own + late);
      time += took;
      plain += now * static_cast<double>(right + 1);
      pace.add_verified(Pace::kDrafted, count, right, took * 1e6, now * own * 1e6,
                        now * late * 1e6);
      proposed += count;
      accepted += right;
      tokens += right + 1;
    }
    std::printf("%g %zu %zu %d ", plain / time, proposed, accepted, promises);
  }
}
"""


# Draws three tokens after another one, with logits that depend on the last token: one by one, and
# after a call that verified three proposals.
_DRAW = """
#include <cstdio>

#include "generation/sampling.h"
#include "generation/speculation.h"

int main() {
  Sampling sampling;
  size_t count = 0, draws = 0;
  std::scanf("%zu %zu %lf %lf %lf", &count, &draws, &sampling.temperature, &sampling.min_p,
             &sampling.repetition_penalty);
  std::vector<float> logits(count * count);
  for (float& logit : logits) std::scanf("%f", &logit);
  for (sampling.seed = 0; sampling.seed < draws; ++sampling.seed) {
    for (const bool verifies : {false, true}) {
      Sampler sampler(sampling);
      std::vector<int64_t> text{3}, fed{3};
      if (verifies) fed = {3, 1, 4, 0};
      while (text.size() < 4) {
        const auto chosen = choose_verified(fed, {}, [&](size_t i) {
          sampler.see({fed[i]});
          return sampler.choose(logits.data() + static_cast<size_t>(fed[i]) * count, count);
        });
        text.insert(text.end(), chosen.begin(), chosen.end());
        fed = {text.back()};
      }
      std::printf("%ld%ld%ld ", text[1], text[2], text[3]);
    }
  }
}
"""


@dataclass(frozen=True)
class Pace:
    """How much faster a text is, and what it took."""

    speed_up: float
    calls: int
    proposed: int
    accepted: int


Generate = Callable[..., Pace]


def _compiled(folder: Path, main: str, *flags: str) -> Path:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    (folder / "main.cpp").write_text(main)
    command = [compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", "-I", str(runner_sources())]
    subprocess.run([*command, *flags, "main.cpp", "-o", "main"], cwd=folder, check=True)
    return folder / "main"


@pytest.fixture(scope="module")
def generate(tmp_path_factory: pytest.TempPathFactory) -> Generate:
    path = _compiled(tmp_path_factory.mktemp("speculation"), _MAIN)

    def generated(prompt: Sequence[int], text: Sequence[int], *costs: float) -> Pace:
        given = " ".join(map(str, (len(prompt), *prompt, len(text), *text)))
        ended = subprocess.run(
            [str(path), *map(str, costs)],
            input=given, capture_output=True, text=True, check=True,
        )  # fmt: skip
        speed_up, *numbers = ended.stdout.split()
        return Pace(float(speed_up), *map(int, numbers))

    return generated


# What calls with 2, 8 and 16 tokens cost: a small model, which computes more than it reads, and a
# large one.
_COSTS = ((2.1, 2.5, 4.2), (1.2, 1.4, 1.8))


@pytest.mark.parametrize("costs", _COSTS)
def test_what_is_copied_takes_half_the_time(
    generate: Generate, costs: tuple[float, float, float]
) -> None:
    """Two sentences of the prompt after own words, with a token exchanged in each."""
    draw = random.Random(1)
    prompt = [draw.randrange(1000) for _ in range(300)]
    first, second = [*prompt[50:130]], [*prompt[200:290]]
    first[40] = second[50] = 1001
    own = [draw.randrange(2000, 3000) for _ in range(20)]
    found = generate(prompt, [*own[:10], *first, *own[10:], *second], *costs)
    assert found.speed_up > 2
    assert found.accepted > 0.7 * found.proposed


@pytest.mark.parametrize("costs", [*_COSTS, (6.0, 8.0, 12.0)])
def test_a_text_without_repetitions_is_as_fast_as_without(
    generate: Generate, costs: tuple[float, float, float]
) -> None:
    """Pairs of tokens come again, as in every text, and something else follows."""
    draw = random.Random(2)
    pairs = [(draw.randrange(500), draw.randrange(500)) for _ in range(30)]
    text = [
        token
        for _ in range(60)
        for token in (draw.randrange(500), draw.randrange(500), *draw.choice(pairs))
    ]
    found = generate(text[:40], text[40:], *costs)
    assert found.speed_up > 0.97
    new = list(range(300))
    assert generate([], new, *costs) == Pace(1.0, 299, 0, 0)


def test_a_text_that_repeats_itself_is_proposed_beyond_its_end(generate: Generate) -> None:
    found = generate([], [1, 2, 3] * 60, 2.1, 2.5, 4.2)
    assert found.speed_up > 2.5
    assert found.proposed - found.accepted <= 15


_CODE = """class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
        return self.balance
"""
_EXAMPLE = """class Point:
    def __init__(self, x, y):
        self.x = x
        self.y = y
"""


def _documented(code: str) -> str:
    return re.sub(r"def (\w+)\(.*\n", r'\g<0>        """Of \1."""\n', code)


def test_what_is_copied_is_recognized_where_trials_are_expensive(generate: Generate) -> None:
    """The second answer of a chat, whose beginning is not that of the first one."""
    turns = "".join(f"Document this:\n{code}Answer:\n" for code in (_EXAMPLE, _CODE))
    prompt = turns.replace("Answer:\n", f"Answer:\n{_documented(_EXAMPLE)}", 1)
    numbers: dict[str, int] = {}
    ids = [
        [numbers.setdefault(word, len(numbers)) for word in re.findall(r"\w+|\s+|.", text)]
        for text in (prompt, _documented(_CODE))
    ]
    found = generate(*ids, 1.7, 2.4, 4.3)
    assert found.speed_up > 2


def test_a_copy_goes_on_where_a_word_was_replaced(generate: Generate) -> None:
    """By a new token. The one after it is at many places of the prompt."""
    draw = random.Random(5)
    prompt = [draw.randrange(12) for _ in range(300)]
    text = [100 + at if at % 8 == 4 else token for at, token in enumerate(prompt)]
    found = generate(prompt, text, 1.2, 1.4, 1.8)
    # Of eight tokens, the new one and that after it are not proposed.
    assert found.accepted > 5 / 8 * len(text)
    assert found.speed_up > 2.5


def test_repetitions_after_a_long_text_of_accidental_matches_are_found(generate: Generate) -> None:
    draw = random.Random(3)
    start = [draw.randrange(3) for _ in range(150)]  # matches everywhere, which are mostly wrong
    copied = [draw.randrange(100, 900) for _ in range(150)]
    found = generate([*copied], [*start, *copied], 2.1, 2.5, 4.2)
    assert found.accepted > 60


@dataclass(frozen=True)
class Drafted:
    """How much faster a text with a draft is, and whether it seemed to pay at its beginning."""

    speed_up: float
    proposed: int
    accepted: int
    promised: bool


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Drafted]]:
    path = _compiled(tmp_path_factory.mktemp("drafted"), _DRAFTED)

    def generated(
        costs: Sequence[float],
        drafting: float,
        *right: float,
        slower: float = 1,
        disturbed: float = 0,
    ) -> list[Drafted]:
        command = [str(path), *map(str, (*costs, drafting, slower, disturbed, *right))]
        words = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        rows = [words[i : i + 4] for i in range(0, len(words), 4)]
        return [Drafted(float(a), int(b), int(c), bool(int(d))) for a, b, c, d in rows]

    return generated


def test_a_draft_pays_where_it_is_often_right(drafted: Callable[..., list[Drafted]]) -> None:
    """As much as the best number of proposals would, which has to be found first."""
    small, large = _COSTS
    for costs, drafting, right, least in (
        (large, 0.1, 0.7, 1.45), (large, 0.2, 0.7, 1.2), (large, 0.1, 0.9, 2.4),
        (small, 0.1, 0.9, 1.5),
    ):  # fmt: skip
        for text in drafted(costs, drafting, right, right, right):
            assert text.speed_up > least, (costs, right)
            assert abs(text.accepted / text.proposed - right) < 0.35


def test_a_draft_that_does_not_pay_costs_next_to_nothing(
    drafted: Callable[..., list[Drafted]],
) -> None:
    """Since it is never right, or too slow; one that is too slow reads no second prompt."""
    small, large = _COSTS
    for costs, drafting, right in (
        (small, 0.1, 0.0), (large, 0.1, 0.0), (small, 0.2, 0.7), (large, 0.9, 0.7), (large, 3, 0.9),
    ):  # fmt: skip
        texts = drafted(costs, drafting, right, right, right)
        assert min(text.speed_up for text in texts) > 0.98 - 0.015 * drafting, (costs, drafting)
        assert texts[0].promised
        assert drafting < 0.9 or not texts[1].promised
    found = drafted(large, 0.1, 0.0, 0.8, 0.8, 0.8)  # another kind of text
    assert found[3].speed_up > 1.5


@pytest.mark.parametrize(
    ("slower", "disturbed", "least"),
    [(1.3, 0, 0.95), (1.6, 0, 0.9), (0.6, 0, 0.95), (1, 0.1, 0.85)],
)
def test_a_draft_is_not_given_up_where_the_machine_is_slower_for_a_time(
    drafted: Callable[..., list[Drafted]], slower: float, disturbed: float, least: float
) -> None:
    """Single tokens, whose time would show it, are rare while a draft pays."""
    _, large = _COSTS

    def speed_up(drafting: float, right: float, slower: float = 1, disturbed: float = 0) -> float:
        texts = drafted(large, drafting, *[right] * 20, slower=slower, disturbed=disturbed)
        return statistics.geometric_mean(text.speed_up for text in texts)

    for right in (0.7, 0.8):
        assert speed_up(0.1, right, slower, disturbed) > least * speed_up(0.1, right), right
    assert speed_up(0.9, 0.7, slower, disturbed) > 0.99


def test_verified_tokens_have_the_probabilities_of_the_sampling(tmp_path: Path) -> None:
    """Pearson's chi-square over all texts of three tokens, by the exact probability of each."""
    count, draws, temperature, min_p, penalty = 6, 40_000, 1.3, 0.05, 1.2
    logits = np.random.default_rng(4).normal(0, 1.5, (count, count)).astype(np.float32)
    path = _compiled(tmp_path, _DRAW, '-DEXECUTORCH_VERSION="0"')
    numbers = (count, draws, temperature, min_p, penalty, *logits.ravel().tolist())
    given = " ".join(map(repr, numbers))
    words = subprocess.run(
        [str(path)], input=given, capture_output=True, text=True, check=True
    ).stdout.split()
    assert words[::2] == words[1::2]  # one by one, and verified
    found = Counter(words[1::2])

    def probabilities(text: Sequence[int]) -> NDArray[np.floating[Any]]:
        own = logits[text[-1]].astype(float)
        for token in set(text):
            own[token] = own[token] * penalty if own[token] < 0 else own[token] / penalty
        weights = np.exp((own - own.max()) / temperature)
        weights[weights < min_p] = 0
        chances: NDArray[np.floating[Any]] = weights / weights.sum()
        return chances

    expected = {}
    for text in itertools.product(range(count), repeat=3):
        whole = (3, *text)
        chances = [probabilities(whole[:i])[whole[i]] for i in (1, 2, 3)]
        expected["".join(map(str, text))] = draws * float(np.prod(chances))
    assert found.keys() <= {text for text, number in expected.items() if number > 0}
    likely = {text: number for text, number in expected.items() if number >= 5}
    chi_square = sum((found[text] - number) ** 2 / number for text, number in likely.items())
    # Its mean is the number of cells, its variance twice that.
    assert len(likely) > 50
    assert abs(chi_square - len(likely)) < 5 * (2 * len(likely)) ** 0.5
    # Where every proposal is right, and where the first one is wrong.
    assert likely["140"] > 100
    assert sum(number for text, number in likely.items() if text[0] != "1") > 1000
