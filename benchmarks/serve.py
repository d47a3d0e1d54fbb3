"""Many requests of the openai client to `etdeploy serve`, some of them cut off.

    python benchmarks/serve.py --model FOLDER [--requests 1000] [--cut 20] [--at-once 16]

Half of the requests are streams. Texts are greedy, so each prompt has one answer, which is asked
for alone before. Prints how many answers were lost or another prompt's, and the memory of the
server and of what it started, after a tenth of the requests and at the end. Bounds: none lost, none
mixed up, memory constant.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import openai
import psutil

PROMPTS = 25
_NEW_TOKENS = 24
_ADDRESS = re.compile(r"http://\S+/v1")


@dataclass
class Outcome:
    """What became of the requests, and bytes of memory: early and at the end."""

    answered: int = 0
    cut: int = 0
    mixed_up: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)


@contextmanager
def served(arguments: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Start the server; the address of its API, and its process."""
    command = [sys.executable, "-m", "etdeploy", "serve", "--quiet", "--port", "0", *arguments]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield _address(child), child.pid
    finally:
        child.terminate()
        child.communicate(timeout=60)


def _address(child: subprocess.Popen[str]) -> str:
    shown = []
    for line in child.stderr or ():
        shown.append(line)
        if found := _ADDRESS.search(line):
            return found[0]
    raise RuntimeError("the server ended:\n" + "".join(shown[-20:]))


def memory_bytes(pid: int) -> int:
    """The memory of a process and all that it started, without shared pages."""
    process = psutil.Process(pid)
    return sum(each.memory_full_info().uss for each in (process, *process.children(recursive=True)))


async def burst(
    address: str, requests: int, cut: int, at_once: int, pid: int | None = None
) -> Outcome:
    """Send requests, of which some are cut off after their first piece.

    Args:
        address: Of the API.
        requests: How many.
        cut: How many of them.
        at_once: How many of them wait or are answered at once.
        pid: The server's, whose memory is looked at.
    """
    client = openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0, timeout=600)
    name = (await client.models.list()).data[0].id
    expected = {p: await _whole(client, name, p) for p in map(_prompt, range(PROMPTS))}
    outcome, gate = Outcome(), asyncio.Semaphore(at_once)
    every = requests // cut if cut else requests + 1

    async def send(number: int) -> None:
        prompt = _prompt(number % PROMPTS)
        async with gate:
            try:
                if number % every == every // 2 and outcome.cut < cut:
                    outcome.cut += 1
                    await _cut_off(client, name, prompt)
                    return
                ask = _streamed if number % 2 else _whole
                answer = await ask(client, name, prompt)
            except (openai.OpenAIError, OSError) as error:
                outcome.lost.append(f"{number}: {error!r}")
                return
        outcome.answered += 1
        if answer != expected[prompt]:
            outcome.mixed_up.append(f"{number}: {answer!r} is not {expected[prompt]!r}")
        if pid and outcome.answered in (requests // 10, requests - cut):
            outcome.memory_bytes.append(memory_bytes(pid))

    await asyncio.gather(*map(send, range(requests)))
    await client.close()
    return outcome


def _prompt(number: int) -> str:
    # What they have in common is computed once; the rest is not.
    return f"This is the text with the number {number}, which {'goes on ' * (number % 7)}and"


async def _whole(client: openai.AsyncOpenAI, name: str, prompt: str) -> str:
    made = await client.completions.create(
        model=name, prompt=prompt, max_tokens=_NEW_TOKENS, temperature=0
    )
    return made.choices[0].text


async def _streamed(client: openai.AsyncOpenAI, name: str, prompt: str) -> str:
    events = await client.completions.create(
        model=name, prompt=prompt, max_tokens=_NEW_TOKENS, temperature=0, stream=True
    )
    return "".join([event.choices[0].text async for event in events if event.choices])


async def _cut_off(client: openai.AsyncOpenAI, name: str, prompt: str) -> None:
    events = await client.completions.create(
        model=name, prompt=prompt, max_tokens=1000, temperature=0, stream=True
    )
    async for _ in events:
        break
    await events.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="host")
    for name, value in (("requests", 1000), ("cut", 20), ("at-once", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    with served(["--model", given.model, "--device", given.device]) as (address, pid):
        began = time.monotonic()
        found = asyncio.run(burst(address, given.requests, given.cut, given.at_once, pid))
        took_s = time.monotonic() - began
    early, late = found.memory_bytes[0], found.memory_bytes[-1]
    print(
        f"{found.answered} answered, {found.cut} cut off, {len(found.lost)} lost, "
        f"{len(found.mixed_up)} mixed up, in {took_s:.0f} s on {os.cpu_count()} processors; "
        f"memory {early / 1e6:.1f} -> {late / 1e6:.1f} MB"
    )
    print("\n".join([*found.lost, *found.mixed_up][:10]))


if __name__ == "__main__":
    main()
