"""What a session costs: tokens per second of `etdeploy.open` and of the runner alone.

    python -m benchmarks.session MODEL [--device DEVICE] [--rounds N] [--tokens N]

In turn, a session generates a text, and a runner without Python around it is given the same prompt
and number of tokens by the device's shell. The runner measures each token; the session's rate is by
the clock of this machine, from the first piece of the text to the last. Beside other work, the two
differ by chance; of the session's own texts, the same tokens by the runner's clock say what its way
here costs.
"""

from __future__ import annotations

import argparse
import statistics
import time

import etdeploy
from etdeploy.bench.text_generator import TextGenerator
from etdeploy.runner.generation import Sampling, tokens_per_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--device", default="host")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", default="The sky is")
    given = parser.parse_args()
    with etdeploy.open(model=given.model, device=given.device, quiet=True) as session:
        generator = session._generator
        prompt = session.encode(given.prompt)
        pairs = [
            (_session(session, prompt, given.tokens), _alone(generator, prompt, given.tokens))
            for _ in range(given.rounds)
        ]
    for (here, there), alone in pairs:
        print(f"session {here:8.2f} tokens/s, {there:8.2f} there   runner alone {alone:8.2f}")
    for name, ratios in (
        ("session / runner alone", [here / alone for (here, _), alone in pairs]),
        ("session here / there", [here / there for (here, there), _ in pairs]),
    ):
        ratio = statistics.median(ratios)
        print(f"median of {name}: {ratio:.4f} ({100 * (1 - ratio):+.2f} % overhead)")


def _session(
    session: etdeploy.Session, prompt: tuple[int, ...], tokens: int
) -> tuple[float, float]:
    """Tokens per second after the first, by this machine's clock and by the runner's."""
    session.generate_ids((prompt[0],), 1, Sampling()).close()  # an empty cache, as the runner's
    text = session.generate_ids(prompt, tokens, Sampling())
    next(text)
    first, started = len(text.token_ids), time.perf_counter()
    for _ in text:
        pass
    took_ms = 1000 * (time.perf_counter() - started)
    token_ms = session.timings.token_ms[first - 1 :]
    return tokens_per_s(len(token_ms), took_ms), tokens_per_s(len(token_ms), sum(token_ms))


def _alone(generator: TextGenerator, prompt: tuple[int, ...], tokens: int) -> float:
    """The same of a process of its own, by its own clock."""
    output = generator.generate(prompt, tokens, Sampling(), lambda _: None)
    return tokens_per_s(len(output.token_ms), sum(output.token_ms))


if __name__ == "__main__":
    main()
