"""The messages of a chat, as a prompt that fits the context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from etdeploy.bench.snapshot import Message
from etdeploy.bench.text_generator import more_context, remaining_context
from etdeploy.core.console import count
from etdeploy.program.generation import Generation
from etdeploy.program.tokenizer import ChatTemplate, Tokenizer


@dataclass
class Conversation:
    """The messages of a chat, rendered with the model's chat template.

    `messages` alternate between user and assistant; `system` comes before them and is not one.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    generation: Generation
    system: str | None = None
    messages: list[Message] = field(default_factory=list)

    def ask(self, line: str, new_tokens: int) -> tuple[tuple[int, ...], str]:
        """Adds a line of the user; drops the oldest messages if the context is full.

        Returns the prompt, and a sentence about the dropped messages, which is empty if there are
        none. Raises UsageError, and changes nothing, if this line alone does not fit the context
        or the template refuses it. `new_tokens` is the most that the answer may have.
        """
        messages = [*self.messages, {"role": "user", "content": line}]
        prompt = self._ids(messages)
        if len(prompt) + min(new_tokens, self.generation.context // 4) > self.generation.context:
            messages, prompt = self._shortened(messages, prompt)
        remaining_context(self.generation, len(prompt))
        dropped = (1 + len(self.messages) - len(messages)) // 2
        self.messages = messages
        return prompt, self._dropped(dropped) if dropped else ""

    def answer(self, text: str) -> None:
        """Adds the model's answer to the last line."""
        self.messages.append({"role": "assistant", "content": text})

    def clear(self) -> None:
        """Removes all messages."""
        self.messages = []

    def _shortened(
        self, messages: list[Message], prompt: tuple[int, ...]
    ) -> tuple[list[Message], tuple[int, ...]]:
        """Drops the oldest messages until half of the context is free.

        All that follows has to be computed again, so this must not happen with every line.
        """
        while len(messages) > 1 and len(prompt) > self.generation.context // 2:
            messages = messages[2:]
            prompt = self._ids(messages)
        return messages, prompt

    def _ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        before = [{"role": "system", "content": self.system}] if self.system else []
        return self.tokenizer.encode_rendered(self.template.render([*before, *messages]))

    def _dropped(self, pairs: int) -> str:
        what = "line and its answer" if pairs == 1 else f"{count(pairs, 'line')} with their answers"
        return (
            f"dropped the oldest {what}: the context of {self.generation.context:,} tokens is full "
            f"({more_context(self.generation)})"
        )
