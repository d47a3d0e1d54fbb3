"""Request and results of a runner that generates text.

The request is a file of lines, words separated by one space:

    method NAME ROLE MAX_TOKENS DYNAMIC CAPACITY PREFIX_STEP
    sampling TEMPERATURE TOP_K TOP_P SEED
    stop ID ID ...
    point NAME DEPTH NEW_TOKENS REPETITIONS PATH

DYNAMIC is 0 or 1. With TEMPERATURE 0, the most probable token is taken. PATH is a file of
little-endian int64 token ids, relative to the request. DEPTH tokens are in the cache before the
prompt, made of its tokens again and again; filling it is not timed.
"""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.core.values import Value
from etdeploy.program.generation import GenerationMethod


class Sampling(Value):
    """How the next token is chosen.

    Attributes:
        temperature: Logits are divided by it; 0 takes the most probable token.
        top_k: Only so many of the most probable tokens; 0 for all.
        top_p: Only the most probable tokens whose probabilities add up to this.
        seed: Of the generator; the same on every device.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


class Point(Value):
    """One prompt, with what is generated after it.

    Attributes:
        name: Names it in the results.
        depth: Tokens that are in the cache before the prompt.
        new_tokens: The most that are generated; fewer where a stop token comes.
        repetitions: How often; each time from the same state.
        path: File with the prompt's token ids, relative to the request.
    """

    name: str
    depth: int = 0
    new_tokens: int
    repetitions: int = 1
    path: str


class Generated(Value):
    """One repetition of a point.

    Attributes:
        point: Its name.
        prefill_ms: Time of each call that took a part of the prompt, from the first on.
        first_token_ms: From the start of the prefill until the first token was chosen.
        token_ms: Time of each further token: call and choice.
        token_ids: All new tokens, with the one that ended the text.
        stopped: Whether a stop token ended it.
    """

    point: str
    prefill_ms: tuple[float, ...]
    first_token_ms: float
    token_ms: tuple[float, ...]
    token_ids: tuple[int, ...]
    stopped: bool


class RunnerGeneration(Value):
    """What a runner with --generation adds to results.json, as `generation`.

    Attributes:
        load_methods_ms: Loading each method, by name.
        runs: In the order in which they ran.
    """

    load_methods_ms: dict[str, float]
    runs: tuple[Generated, ...]


def request_lines(
    methods: Sequence[GenerationMethod],
    sampling: Sampling,
    stop_ids: Sequence[int],
    points: Sequence[Point],
) -> str:
    """The text of the file that the runner's --generation names."""
    lines = [
        f"method {m.name} {m.role} {m.max_tokens} {int(m.dynamic)} {m.capacity} {m.prefix_step}"
        for m in methods
    ]
    s = sampling
    lines.append(f"sampling {s.temperature!r} {s.top_k} {s.top_p!r} {s.seed}")
    lines.append(" ".join(["stop", *map(str, stop_ids)]))
    lines += [f"point {p.name} {p.depth} {p.new_tokens} {p.repetitions} {p.path}" for p in points]
    return "\n".join(lines) + "\n"
