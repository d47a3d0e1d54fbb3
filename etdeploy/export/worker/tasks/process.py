"""Results of a task, read by a worker process from the program folder alone."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from etdeploy.export.protocol import TaskAnswer, TaskRequest
from etdeploy.export.worker.failures import failure_of
from etdeploy.export.worker.tasks.inputs import (
    INPUT_IMAGE,
    LABELS,
    PROCESSOR_FOLDER,
    Processor,
    load_processor,
)
from etdeploy.export.worker.tasks.results import ModelAnswer, Tensors, task_result
from etdeploy.program.folder import TensorFile, load_provenance
from etdeploy.program.task import TaskResult
from etdeploy.recipe.hub_cache import read_object


def answer(request_file: str, answer_file: str) -> int:
    """Writes the answer to a request; a failure is described in it."""
    try:
        result = read_result(TaskRequest.load(Path(request_file)))
        TaskAnswer(result=result).save(Path(answer_file))
    except Exception as error:
        traceback.print_exc()
        TaskAnswer(failure=failure_of(error)).save(Path(answer_file))
        return 1
    return 0


def read_result(request: TaskRequest) -> TaskResult:
    """What the outputs of a program mean."""
    program = Path(request.program)
    made, folder = load_provenance(program), program / PROCESSOR_FOLDER
    if made.task is None:
        raise ValueError(f"{program} is not of a task")
    processor, config = _reader(folder, made.task.task)
    given = (each for each in made.inputs if isinstance(each, TensorFile))
    inputs = _tensors(each.model_copy(update={"path": str(program / each.path)}) for each in given)
    image = _image(folder / INPUT_IMAGE)
    found = ModelAnswer(processor, config, inputs, _tensors(request.outputs), image)
    return task_result(found, Path(request.file))


def _reader(folder: Path, task: str) -> tuple[Processor, Any]:
    """What reads the outputs, with the configuration that names the labels."""
    if (folder / LABELS).is_file():
        names = {int(index): name for index, name in read_object(folder / LABELS).items()}
        return Processor(folder, task, "image", None), SimpleNamespace(id2label=names)
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    return load_processor(folder, task), config


def _tensors(files: Iterable[TensorFile]) -> Tensors:
    return {each.name: torch.from_numpy(_array(each)) for each in files}


def _array(file: TensorFile) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    values = np.fromfile(file.path, dtype=np.dtype(file.dtype))
    return values.reshape(file.shape)


def _image(path: Path) -> object:
    from PIL import Image

    if not path.is_file():
        return None
    with Image.open(path) as opened:
        return opened.convert("RGB")
