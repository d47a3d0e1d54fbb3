"""Small vision-language models: what their methods give, and what is refused, as JSON.

`python -m tests.support.vision_language FOLDER` takes a folder of tests/support/task_models.
`... PROGRAM MODEL IMAGE` prints the tokens that ExecuTorch's own runner generates.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image

from etdeploy.export.spec import TaskInput
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.language.vision_language import image_input, vision_language_sources
from etdeploy.export.worker.tasks.inputs import load_processor
from etdeploy.program.generation import VISION_ENCODER

_TASK = "image-text-to-text"
_OPTIONS: dict[str, Any] = {
    "context": 128, "prefill_tokens": 16, "path": "auto", "attention": "stock", "fixed": False,
}  # fmt: skip
_ANSWER = 4
FAMILIES = ("llava", "smolvlm", "idefics3", "gemma3-vision", "qwen2.5-vl")


def image(path: Path, mode: str = "RGB", size: tuple[int, int] = (64, 48)) -> str:
    picture = Image.effect_mandelbrot(size, (-3, -2.5, 2, 2.5), 20).convert(mode)
    picture.save(path)
    return str(path)


def loaded(folder: Path) -> Any:
    kind = transformers.AutoModelForImageTextToText
    return kind.from_pretrained(folder, attn_implementation="sdpa").eval()


def family(folder: Path) -> dict[str, Any]:
    """The methods of a model, and how far their logits are from those of its own forward."""
    model, processor = loaded(folder), load_processor(folder, _TASK)
    picture = image(folder / "picture.png")
    given = image_input(TaskInput(image=picture, text="what is it?"), model, processor)
    own = given.forward(model)
    wanted = [own.last(given.prompt)]
    tokens = [int(wanted[0].argmax())]
    for _ in range(_ANSWER):
        wanted.append(own.last(tokens[-1:]))
        tokens.append(int(wanted[-1].argmax()))
    made, placed = vision_language_sources(model, given, **_OPTIONS)
    modules = {name: source.module for name, source in made.sources.items()}
    forward = placed.methods_forward(made.methods, modules)
    found = [forward.last(placed.prompt), *(forward.last([token]) for token in tokens[:-1])]
    rows = modules[VISION_ENCODER](given.parts[0])
    return {
        "path": made.path,
        "methods": list(made.sources),
        "parts": [list(part.shape) for part in given.parts],
        "rows": list(rows.shape),
        "image_tokens": given.prompt.count(given.image_id),
        "table": None if placed.table is None else placed.table.tolist(),
        "prefill": max(method.max_tokens for method in made.methods),
        "prompt": len(given.prompt),
        "error": max(float((a - b).abs().max()) for a, b in zip(wanted, found, strict=True)),
        "largest": float(torch.stack(wanted).abs().max()),
        "is_real": [given.tensors.is_real, given.note],
    }


def random_image(folder: Path) -> list[Any]:
    given = image_input(TaskInput(), loaded(folder), load_processor(folder, _TASK))
    return [given.tensors.is_real, given.note]


def modes(folder: Path) -> dict[str, list[list[int]]]:
    """The shapes of the parts of images of other modes and sizes."""
    model, processor = loaded(folder), load_processor(folder, _TASK)
    cases = {"gray": ("L", (64, 48)), "transparent": ("RGBA", (64, 48)), "tiny": ("RGB", (5, 3)),
             "tall": ("RGB", (30, 200))}  # fmt: skip
    found = {}
    for name, (mode, size) in cases.items():
        picture = image(folder / f"{name}.png", mode, size)
        given = image_input(TaskInput(image=picture, text="x"), model, processor)
        found[name] = [list(part.shape) for part in given.parts]
    return found


def refused(folder: Path) -> dict[str, list[str | None]]:
    """Message, remedy and place of each refusal."""
    processor, model = load_processor(folder, _TASK), loaded(folder)

    def given(**values: str) -> Any:
        return image_input(TaskInput(**values), model, processor)

    def without_tokens() -> Any:
        model.config.image_token_id = 5_000
        return given()

    bare = folder.with_name("bare")
    bare.mkdir(exist_ok=True)
    processor.tokenizer.save_pretrained(bare)
    damaged = folder / "damaged.png"
    damaged.write_bytes(b"\x89PNG\r\n")
    cases: Mapping[str, Callable[[], Any]] = {
        "token": lambda: given(text="a <image> of"),
        "empty": lambda: given(text=" "),
        "damaged": lambda: given(image=str(damaged)),
        "processor": lambda: load_processor(bare, _TASK),
        "tokens": without_tokens,
    }
    found: dict[str, list[str | None]] = {}
    for name, case in cases.items():
        try:
            case()
        except WorkerError as error:
            failure = error.failure
            found[name] = [failure.message, failure.remedy, failure.file]
    return found


def multimodal_runner(program: Path, folder: Path, picture: str) -> None:
    """The tokens that ExecuTorch's runner of several modalities generates, as a list."""
    from executorch.extension.llm import runner as llm

    given = image_input(
        TaskInput(image=picture, text="what is it?"), loaded(folder), load_processor(folder, _TASK)
    )
    rows, parts = given.prompt.count(given.image_id) // len(given.parts), iter(given.parts)
    inputs, rest = [], list(given.prompt)
    while rest:
        if rest[0] == given.image_id:
            inputs.append(llm.make_image_input(next(parts)[0]))
            del rest[:rows]
            continue
        end = rest.index(given.image_id) if given.image_id in rest else len(rest)
        inputs.append(llm.make_token_input(rest[:end]))
        del rest[:end]
    # It gives texts, and takes no text that is cut in the middle of a character.
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"].values()
    tokenizer["model"]["vocab"] = {f"{i} ": i for i in ids}
    for token in tokenizer["added_tokens"]:
        token["content"] = f"{token['id']} "
    tokenizer["post_processor"] = None
    path = program.with_name("numbers.json")
    path.write_text(json.dumps(tokenizer))
    config = llm.GenerationConfig()
    config.max_new_tokens, config.temperature, config.echo = 8, 0.0, False
    texts: list[str] = []
    llm.MultimodalRunner(str(program), str(path)).generate(inputs, config, texts.append)
    sys.stdout.write("\n" + json.dumps([int(word) for word in "".join(texts).split()]) + "\n")


def main(folder: Path) -> None:
    found: dict[str, Any] = {name: family(folder / name) for name in FAMILIES}
    found["random"] = random_image(folder / "llava")
    found["modes"] = modes(folder / "llava")
    found["refused"] = refused(folder / "llava")
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(Path(sys.argv[1]))
    else:
        multimodal_runner(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
