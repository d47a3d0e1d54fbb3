"""Generates with ExecuTorch's own runner of language models, as its Python package has it.

    python -m tests.support.stock_runner PROGRAM TOKENIZER NEW_TOKENS TEXT...

writes one line of JSON at the end: the text that follows each of the texts, and the milliseconds to
its first token and of all others. Where TOKENIZER is a number, it is that of the vocabulary, and
texts are token ids, `1 15 27`.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def ids_tokenizer(folder: Path, vocabulary: int) -> Path:
    """A tokenizer whose tokens are `<0>`, `<1>` and so on, for ExecuTorch's C++ tokenizers."""
    names = [f"<{number}>" for number in range(vocabulary)]
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": i, "content": n, "special": True, **plain} for i, n in enumerate(names)]
    model = {"type": "BPE", "vocab": {n: i for i, n in enumerate(names)}, "merges": []}
    path = folder / "tokenizer.json"
    content = {"version": "1.0", "added_tokens": added, "pre_tokenizer": bytes_, "decoder": bytes_}
    path.write_text(json.dumps({**content, "model": model}))
    return path


def generated(program: str, tokenizer: str, new_tokens: int, texts: Sequence[str]) -> list[Any]:
    """What follows each of the texts, the most probable token each time."""
    import executorch.extension.llm.custom_ops.custom_ops
    import executorch.kernels.quantized  # noqa: F401 - registers kernels
    from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner

    runner = TextLLMRunner(program, tokenizer)
    config = GenerationConfig(echo=False, max_new_tokens=new_tokens, temperature=0.0)
    told = []
    for text in texts:
        pieces: list[str] = []
        stats: list[Any] = []
        runner.reset()
        runner.generate(text, config, pieces.append, stats.append)
        first = stats[-1].first_token_ms
        told.append(
            {
                "text": "".join(pieces),
                "first_ms": first - stats[-1].inference_start_ms,
                "rest_ms": stats[-1].inference_end_ms - first,
                "tokens": len(pieces),
            }
        )
    return told


def main(program: str, tokenizer: str, new_tokens: str, *texts: str) -> list[Any]:
    if not tokenizer.isdecimal():
        return generated(program, tokenizer, int(new_tokens), texts)
    with tempfile.TemporaryDirectory() as folder:
        own = str(ids_tokenizer(Path(folder), int(tokenizer)))
        prompts = ["".join(f"<{number}>" for number in text.split()) for text in texts]
        told = generated(program, own, int(new_tokens), prompts)
    return [{**each, "text": " ".join(re.findall(r"<(\d+)>", str(each["text"])))} for each in told]


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(*sys.argv[1:])) + "\n")
