"""Silero VAD: the probability that a frame of 32 ms is speech, with a state between frames.

The frames are sentences that espeak-ng speaks, silence, noise and tones.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import subprocess
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import nn

from tests.support.real.execute import eager_runner
from tests.support.real.files import FAMILIES, Floats, Runner, Unavailable

RATE_HZ, STEP, CONTEXT = 16000, 512, 64
_ESPEAK_RATE_HZ = 22050
_SENTENCES = (
    ("en-us", "The quick brown fox jumps over the lazy dog."),
    ("en-gb", "Please turn off the light in the kitchen."),
    ("de", "Morgen früh fahren wir mit dem Zug nach Berlin."),
    ("es", "Mañana por la mañana vamos a la playa."),
)
_CALIBRATION = (
    ("en-us+f3", "Seven o'clock is too early for a meeting."),
    ("fr", "Il fait beau, et nous allons nous promener."),
)


class Vad(nn.Module):  # type: ignore[misc]
    """A spectrum by convolution, four convolutions, an LSTM cell; takes and returns its state."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        padded = nn.functional.pad(x, (0, CONTEXT), mode="reflect")[:, None]
        real, imaginary = self.stft_conv(padded).chunk(2, dim=1)
        x = (real.square() + imaginary.square()).sqrt()
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = layer(x).relu()
        hidden, cell = self.lstm_cell(x.squeeze(-1), (state[0], state[1]))
        speech = self.final_conv(hidden.relu()[:, :, None]).sigmoid()
        return speech.squeeze(-1), torch.stack((hidden, cell))


def make() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    frame = next(itertools.islice(frames(speak(*_CALIBRATION[0])), 8, None))
    return Vad().eval(), (frame, torch.zeros(2, 1, 128))


def calibrate() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Other voices and sentences than those of the evaluation, with the states that occur."""
    run = eager_runner(FAMILIES["vad"], "vad")
    state = torch.zeros(2, 1, 128)
    audio = np.concatenate([part for pair in _CALIBRATION for part in (speak(*pair), silence(0.3))])
    for i, frame in enumerate(frames(audio)):
        if i % 2:
            yield frame, state
        state = run(frame, state)[1]


@functools.cache
def speak(voice: str, sentence: str) -> Floats:
    """A sentence by espeak-ng, without silence at its ends.

    Raises:
        Unavailable: There is no espeak-ng.
    """
    program = shutil.which("espeak-ng")
    if not program:
        raise Unavailable("espeak-ng is not installed: apt-get install espeak-ng")
    argv = [program, "-v", voice, "--stdout", sentence]
    spoken = subprocess.run(argv, capture_output=True, check=True).stdout
    # After the header of a .wav file: whole numbers of 16 bits.
    samples = np.frombuffer(spoken[44 : len(spoken) // 2 * 2], "<i2") / np.float32(32768)
    loud = np.flatnonzero(np.abs(samples) > 0.02)
    return _resample(samples[loud[0] : loud[-1] + 1])


def silence(seconds: float, seed: int = 0) -> Floats:
    """A quiet room: noise of -66 dB."""
    random = np.random.default_rng(seed)
    return (5e-4 * random.standard_normal(int(seconds * RATE_HZ))).astype(np.float32)


def frames(audio: Floats) -> Iterator[torch.Tensor]:
    """Frames of 512 samples, each with the last 64 of the one before."""
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), audio])
    for start in range(0, len(audio) - STEP + 1, STEP):
        yield torch.from_numpy(padded[start : start + CONTEXT + STEP].copy())[None]


def probabilities(run: Runner, audio: Floats) -> Floats:
    """Of speech, in each frame."""
    state, found = torch.zeros(2, 1, 128), []
    for frame in frames(audio):
        speech, state = run(frame, state)
        found.append(float(speech))
    return np.array(found, np.float32)


def evaluate(runners: Mapping[str, Runner]) -> dict[str, float]:
    """F1 of frames of speech in sentences between pauses, and false alarms in other sounds."""
    audio, is_speech = _dialogue()
    found = probabilities(runners["vad"], audio) > 0.5
    truth = is_speech[: len(found) * STEP].reshape(-1, STEP).mean(axis=1) > 0.5
    hits = np.sum(found & truth)
    alarms = np.concatenate([probabilities(runners["vad"], s) > 0.5 for s in _other_sounds()])
    return {
        "f1_percent": 200 * float(hits / (found.sum() + truth.sum())),
        "false_alarms_percent": 100 * float(alarms.mean()),
    }


def _dialogue() -> tuple[Floats, Floats]:
    """Sentences with a second of silence before and after each, and 1 for samples of speech."""
    parts = [silence(1.0)]
    for i, sentence in enumerate(_SENTENCES):
        parts += [speak(*sentence) + silence(10, i)[: len(speak(*sentence))], silence(1.0, i)]
    labels = [np.full(len(part), i % 2, np.float32) for i, part in enumerate(parts)]
    return np.concatenate(parts), np.concatenate(labels)


def _other_sounds() -> list[Floats]:
    """Two seconds each of white noise, a tone and clicks."""
    time_s = np.arange(2 * RATE_HZ) / RATE_HZ
    clicks = np.where(np.arange(2 * RATE_HZ) % 8000 < 16, 0.5, 0.0)
    noise = 0.05 * np.random.default_rng(0).standard_normal(len(time_s))
    return [s.astype(np.float32) for s in (noise, 0.3 * np.sin(2764.6 * time_s), clicks)]


def _resample(samples: Floats) -> Floats:
    """From espeak-ng's rate to the model's, by leaving out the frequencies above 8 kHz."""
    count = len(samples) * RATE_HZ // _ESPEAK_RATE_HZ
    spectrum = np.fft.rfft(samples)[: count // 2 + 1]
    return (np.fft.irfft(spectrum, count) * count / len(samples)).astype(np.float32)
