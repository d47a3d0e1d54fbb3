#!/usr/bin/env python3
"""Models of many families on this machine: exported, measured and compared with eager.

    python benchmarks/models.py [--families vit t5] [--write docs/models.md]
    python benchmarks/models.py --make vit ./models

Each row is one run of `etdeploy run`, whose command it names; `--make` saves the model that the
command reads, small and with random weights. Prints a Markdown table, or `--json`; `--write`
replaces the rows of the chosen families in a file. `--folder` stores measured rows, so that a
second start runs only the others. tests/support/task_models.py and
tests/support/language_models.py make the models.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
import wave
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# The folder of the repository: tests.support is no installed package.
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

_INPUTS = {
    "text": ("--text", "a quick brown fox"),
    "masked": ("--text", "a quick [MASK] fox"),
    "image": ("--image", "photo.png"),
    "audio": ("--audio", "tone.wav"),
    "question": ("--image", "photo.png", "--text", "What is in this image?"),
    "prompt": (),
}
_FLOATS, _ONE_CALL = ("none",), ("none", "int8_static")
_FURTHER = (*_ONE_CALL, "openvino/none", "portable/none")
_TEXT = ("none", "8da4w")
_TEXT_PORTABLE = (*_TEXT, "portable/none")
_TEXT_FURTHER = (*_TEXT_PORTABLE, "openvino/none")
_NEW_TOKENS = ("--set", "benchmark.generation.new_tokens=[32]")
_GENERATION = (*_NEW_TOKENS, "--context", "256")


@dataclass(frozen=True)
class Family:
    """A model of the table.

    Attributes:
        name: As `--make` takes it.
        title: In the table.
        input: A key of `_INPUTS`.
        schemes: Of XNNPACK, or `BACKEND/SCHEME`.
        settings: Further arguments of `etdeploy run`.
    """

    name: str
    title: str
    task: str
    input: str
    schemes: tuple[str, ...] = _ONE_CALL
    settings: tuple[str, ...] = ()


FAMILIES = (
    Family("bert", "BERT", "fill-mask", "masked", _FURTHER),
    Family("roberta", "RoBERTa", "text-classification", "text", _FLOATS),
    Family("modernbert", "ModernBERT", "text-classification", "text"),
    Family("minilm", "MiniLM, sentence embeddings", "feature-extraction", "text"),
    Family("deberta", "DeBERTa-V2", "token-classification", "text", _FLOATS),
    Family("vit", "ViT", "image-classification", "image", _FURTHER),
    Family("dinov2", "DINOv2", "image-classification", "image", _FLOATS),
    Family("convnext", "ConvNeXt", "image-classification", "image", _FLOATS),
    Family("swin", "Swin", "image-classification", "image", _FLOATS),
    Family("timm-resnet18", "ResNet-18 of timm", "image-classification", "image"),
    Family("yolos", "YOLOS", "object-detection", "image", _FLOATS),
    Family("detr", "DETR", "object-detection", "image", _FLOATS),
    Family("segformer", "SegFormer", "semantic-segmentation", "image", _FLOATS),
    Family("dpt", "DPT", "depth-estimation", "image", _FLOATS),
    Family("wav2vec2", "wav2vec 2.0", "automatic-speech-recognition", "audio"),
    Family("ast", "AST", "audio-classification", "audio", _FLOATS),
    Family("fastspeech2", "FastSpeech2Conformer, HiFi-GAN", "text-to-speech", "text", _FLOATS),
    Family("whisper", "Whisper", "automatic-speech-recognition", "audio", _TEXT_PORTABLE),
    Family("t5", "T5", "text2text-generation", "text", _TEXT, _GENERATION),
    Family("bart", "BART", "text2text-generation", "text", _FLOATS, _NEW_TOKENS),
    Family("marian", "Marian", "text2text-generation", "text", _FLOATS, _NEW_TOKENS),
    Family("llava", "LLaVA", "image-text-to-text", "question", _FLOATS, _GENERATION),
    Family("smolvlm", "SmolVLM", "image-text-to-text", "question", _TEXT, _GENERATION),
    Family("gemma3-vision", "Gemma 3", "image-text-to-text", "question", _TEXT, _GENERATION),
    Family("qwen2.5-vl", "Qwen2.5-VL", "image-text-to-text", "question", _TEXT, _GENERATION),
    Family("llama", "Llama", "text-generation", "prompt", _TEXT_FURTHER, _GENERATION),
    Family("mamba", "Mamba", "text-generation", "prompt", _TEXT, _GENERATION),
    Family("jamba", "Jamba", "text-generation", "prompt", _FLOATS, _GENERATION),
    Family("rwkv", "RWKV", "text-generation", "prompt", _TEXT, _GENERATION),
    Family("xlstm-small", "xLSTM", "text-generation", "prompt", _FLOATS, _GENERATION),
    Family("recurrent-gemma", "RecurrentGemma", "text-generation", "prompt", _FLOATS, _GENERATION),
)


@dataclass(frozen=True)
class Row:
    """What a run gave.

    Attributes:
        command: With which to repeat it.
        export_s: Wall time of the export; None where it was not made anew.
        latency_ms: Of an inference, or of a token after the first.
        prefill_ms: Of text, the time to the first token.
        agreement: With eager.
        failure: The first line of the message of a run that failed; None for others.
        measured_on: The processor, and the day in UTC.
    """

    family: str
    scheme: str
    command: str
    export_s: float | None = None
    size_bytes: int = 0
    latency_ms: float = 0.0
    prefill_ms: float | None = None
    agreement: str = ""
    failure: str | None = None
    measured_on: str = ""


def main() -> None:
    given = _arguments()
    if given.make:
        make(given.make, Path(given.make_folder))
        return
    if given.write:
        rows_of(given.write.read_text())  # ends without its marks, before an hour of runs
    given.folder.mkdir(parents=True, exist_ok=True)
    rows = [
        _stored(given.folder, family, scheme)
        for family in FAMILIES
        if family.name in given.families
        for scheme in family.schemes
    ]
    measured = {row.command: line(row) for row in rows}
    if given.write:
        page = given.write.read_text()
        text = "\n".join(table(rows_of(page) | measured))
        given.write.write_text(replaced(page, text))
    elif given.json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        print("\n".join(table(measured)))


def _arguments() -> argparse.Namespace:
    names = [family.name for family in FAMILIES]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--families", nargs="+", choices=names, default=names)
    parser.add_argument("--make", choices=names, help="save the model of a family, and do no more")
    parser.add_argument("make_folder", nargs="?", default="models", help="where (models)")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "etdeploy-models",
        help="of models and rows (%(default)s)",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true")
    how.add_argument(
        "--write", type=Path, help="a Markdown file whose rows of these families are replaced"
    )
    return parser.parse_args()


def make(name: str, folder: Path) -> None:
    """Saves a model, with the inputs of all rows beside it."""
    from tests.support import language_models, task_models

    folder.mkdir(parents=True, exist_ok=True)
    if name in language_models.FAMILIES:
        language_models.FAMILIES[name](folder / name)
    else:
        task_models.main(folder, [name])
    _picture(folder / "photo.png")
    _tone(folder / "tone.wav")


def _picture(path: Path) -> None:
    from PIL import Image

    Image.effect_mandelbrot((320, 240), (-3, -2.5, 2, 2.5), 20).convert("RGB").save(path)


def _tone(path: Path) -> None:
    import numpy as np

    samples = np.sin(np.arange(32_000) * 0.05) * 8000
    with wave.open(str(path), "wb") as stream:
        stream.setnchannels(1)
        stream.setsampwidth(2)
        stream.setframerate(16_000)
        stream.writeframes(samples.astype("<i2").tobytes())


def command(family: Family, scheme: str) -> list[str]:
    """The command of a row, in the folder where `--make` saved the model."""
    backend, _, quantization = scheme.rpartition("/")
    settings = [f"export.backend={backend}"] if backend else []
    settings.append(f"export.quantization={quantization}")
    chosen = (word for setting in settings for word in ("--set", setting))
    given = (*_INPUTS[family.input], *chosen, *family.settings)
    return ["etdeploy", "run", "--model", f"./{family.name}", *given, "--device", "host"]


def _stored(folder: Path, family: Family, scheme: str) -> Row:
    """The row, measured unless that is done."""
    path = folder / f"{family.name}-{scheme.replace('/', '-')}.json"
    if path.is_file():
        row = Row(**json.loads(path.read_text()))
        if row.command == shlex.join(command(family, scheme)):
            return row
    print(f"{family.title}, {scheme}", file=sys.stderr)
    if not (folder / family.name / "config.json").is_file():
        maker = [sys.executable, __file__, "--make", family.name, str(folder)]
        subprocess.run(maker, check=True, capture_output=True)
    row = _measured(folder, family, scheme)
    if row.failure is None:  # what failed is tried again
        path.write_text(json.dumps(asdict(row)))
    return row


def _measured(folder: Path, family: Family, scheme: str) -> Row:
    words = command(family, scheme)
    program = [sys.executable, "-c", "from etdeploy.cli.entry import main; main()"]
    done = subprocess.run(
        [*program, *words[1:], "--json"], cwd=folder, capture_output=True, text=True
    )
    try:
        record = json.loads(done.stdout)
    except ValueError:
        lines = [line for line in done.stderr.splitlines() if line.startswith("error")]
        return Row(family.name, scheme, shlex.join(words), failure=(lines or ["no message"])[0])
    return Row(
        family.name,
        scheme,
        shlex.join(words),
        export_s=_export_s(done.stderr),
        **figures(record),
        failure=None if done.returncode == 0 else f"exit code {done.returncode}",
    )


def _export_s(progress: str) -> float | None:
    found = re.search(r"exported.*\(([\d.,]+) s\)", progress)
    return float(found[1].replace(",", "")) if found else None


def figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """Size, times, agreement and machine of a run's record."""
    workload, machine = record["workload"], record["device"]["facts"]
    found: dict[str, Any] = {
        "size_bytes": record["program"]["size_bytes"],
        "measured_on": f"{machine['model']}, {machine['cpu_count']} processors, "
        f"{record['started_at'].partition('T')[0]}",
    }
    if "points" in workload:
        point = workload["points"][0]
        found |= {"latency_ms": point["token_ms"]["median"], "prefill_ms": point["ttft_ms"]}
        return found | {"agreement": _text_agreement(workload["texts"])}
    found["latency_ms"] = workload["latency_ms"]["median"]
    return found | {"agreement": _output_agreement(workload["outputs"])}


def _text_agreement(texts: Sequence[Mapping[str, Any]]) -> str:
    equal = sum(text["equal_tokens"] for text in texts)
    tokens = sum(len(text["expected_ids"]) for text in texts)
    if equal == tokens:
        return f"all {tokens} tokens"
    within = all(text["within_tolerance"] for text in texts)
    return f"{equal} of {tokens} tokens, logits {'' if within else 'not '}within tolerance"


def _output_agreement(outputs: Sequence[Mapping[str, Any]]) -> str:
    worst = max(outputs, key=lambda output: output["max_abs_error"])
    within = all(output["within_tolerance"] for output in outputs)
    return f"{worst['max_abs_error']:.1e}, {'' if within else 'not '}within tolerance"


def line(row: Row) -> str:
    """A row as Markdown."""
    family = next(family for family in FAMILIES if family.name == row.family)
    cells = (
        f"{family.title}, `{family.task}`",
        f"`{_scheme(row.scheme)}`",
        *_cells(row),
        row.measured_on,
    )
    return f"| {' | '.join(cells)} |"


def table(rows: Mapping[str, str]) -> Iterator[str]:
    """Lines of Markdown, of rows by their commands, in the order of `FAMILIES`."""
    order = [
        shlex.join(command(family, scheme)) for family in FAMILIES for scheme in family.schemes
    ]
    listed = [each for each in order if each in rows]
    heads = ("family, task", "backend and scheme", "export", "size", "latency")
    yield f"| {' | '.join(heads)} | agreement with eager | measured on |"
    yield "| --- | --- | ---: | ---: | ---: | --- | --- |"
    yield from (rows[each] for each in listed)
    yield ""
    yield "```console"
    yield from (f"$ {each}" for each in listed)
    yield "```"


def rows_of(page: str) -> dict[str, str]:
    """The rows of a page's table by their commands."""
    measured = _between_marks(page, "models.py")[2].splitlines()
    lines = [each for each in measured if each.startswith("| ")][2:]
    commands = [each.removeprefix("$ ") for each in measured if each.startswith("$ ")]
    return dict(zip(commands, lines, strict=True))


def _between_marks(page: str, name: str) -> re.Match[str]:
    mark = f"<!-- {name} -->"
    found = re.search(rf"({re.escape(mark)}\n)(.*?)(<!-- end -->)", page, re.DOTALL)
    if not found:
        sys.exit(f"the page has no line {mark} with a line <!-- end --> after it")
    return found


def _scheme(scheme: str) -> str:
    return scheme if "/" in scheme else f"xnnpack/{scheme}"


def _cells(row: Row) -> tuple[str, str, str, str]:
    if row.failure and not row.size_bytes:
        return "", "", "", row.failure.replace("|", "\\|")
    latency = f"{row.latency_ms:.3g} ms"
    if row.prefill_ms is not None:
        latency = f"{1000 / row.latency_ms:,.0f} tokens/s, first after {row.prefill_ms:.3g} ms"
    export = "" if row.export_s is None else f"{row.export_s:.0f} s"
    return export, f"{row.size_bytes / 1e6:.2f} MB", latency, row.agreement


def replaced(page: str, table: str, name: str = "models.py") -> str:
    """The page with the table between the marks of that name."""
    found = _between_marks(page, name)
    return f"{page[: found.end(1)]}\n{table}\n\n{page[found.start(3) :]}"


if __name__ == "__main__":
    main()
