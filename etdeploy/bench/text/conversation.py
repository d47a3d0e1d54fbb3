"""What was said in a chat, and as much of it as the program has room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from etdeploy.bench.text.answer import more_context, room
from etdeploy.core.console import count
from etdeploy.program.generation import Generation
from etdeploy.program.text.template import ChatTemplate
from etdeploy.program.text.tokenizer import Tokenizer

Message = dict[str, str]


@dataclass
class Conversation:
    """What was said, in the form of the model's own chat template.

    Attributes:
        tokenizer: The model's own.
        template: The model's own.
        generation: How the program is called.
        system: What the model is told before the conversation.
        messages: What was said so far and is not forgotten, without `system`; what the model said
            follows each line.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    generation: Generation
    system: str | None = None
    messages: list[Message] = field(default_factory=list)

    def ask(self, line: str, new_tokens: int) -> tuple[tuple[int, ...], str]:
        """Adds a line; where the context is full, the oldest ones are forgotten.

        Args:
            line: What the user says.
            new_tokens: The most that an answer has.

        Returns:
            The prompt, and what was forgotten, for people; empty if nothing was.

        Raises:
            UsageError: The context has no room for this line alone, or the template refuses it.
                Nothing is added or forgotten then.
        """
        messages = [*self.messages, {"role": "user", "content": line}]
        prompt = self._ids(messages)
        if len(prompt) + min(new_tokens, self.generation.context // 4) > self.generation.context:
            messages, prompt = self._shortened(messages, prompt)
        room(self.generation, len(prompt))
        turns = (1 + len(self.messages) - len(messages)) // 2
        self.messages = messages
        return prompt, self._forgotten(turns) if turns else ""

    def answer(self, text: str) -> None:
        """Adds what the model said to the last line."""
        self.messages.append({"role": "assistant", "content": text})

    def clear(self) -> None:
        """Forgets everything that was said."""
        self.messages = []

    def _shortened(
        self, messages: list[Message], prompt: tuple[int, ...]
    ) -> tuple[list[Message], tuple[int, ...]]:
        """Leaves out the oldest turns until half of the context is free.

        What follows them has to be computed anew, so that is not to happen with every line.
        """
        while len(messages) > 1 and len(prompt) > self.generation.context // 2:
            messages = messages[2:]
            prompt = self._ids(messages)
        return messages, prompt

    def _ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        before = [{"role": "system", "content": self.system}] if self.system else []
        return self.tokenizer.encode_rendered(self.template.render([*before, *messages]))

    def _forgotten(self, turns: int) -> str:
        what = (
            "line and its answer are" if turns == 1 else f"{count(turns, 'line')} and answers are"
        )
        return (
            f"the oldest {what} forgotten: the context of {self.generation.context:,} tokens is "
            f"full ({more_context(self.generation)})"
        )
