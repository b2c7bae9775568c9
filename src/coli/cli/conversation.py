"""The messages of a chat: what was said, and how an answer is kept for the next turn."""

from __future__ import annotations

import json
from typing import Any

from coli.errors import UsageError
from coli.paths import user_path

__all__ = ["Conversation"]

_END_OF_THINKING = "</think>"


class Conversation:
    """Hold a conversation: ``system`` message, ``thinking`` mode and the turns so far."""

    def __init__(self, system: str | None, thinking: bool) -> None:
        self.system = system
        self.thinking = thinking
        self._turns: list[dict[str, Any]] = []

    def reset(self) -> None:
        """Forget all turns. System message and thinking mode stay."""
        self._turns.clear()

    def with_question(self, text: str) -> list[dict[str, Any]]:
        """Return the messages to render for the question ``text``, which is not part of the conversation yet."""
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*first, *self._turns, {"role": "user", "content": text}]

    def add(self, question: str, answer: str) -> None:
        """Add a question and its answer, as the model wrote it. In thinking mode the thoughts are kept apart."""
        turn: dict[str, Any] = {"role": "assistant", "content": answer}
        if self.thinking:
            thoughts, ended, content = answer.partition(_END_OF_THINKING)
            # An answer that was stopped while the model was thinking has thoughts and no content.
            turn = {"role": "assistant", "content": content if ended else "", "reasoning_content": thoughts}
        self._turns += [{"role": "user", "content": question}, turn]

    def save(self, name: str) -> None:
        """Write the conversation as JSON to the new file ``name``. Raises UsageError when that cannot be done."""
        path = user_path(name)
        text = json.dumps({"system": self.system, "messages": self._turns}, ensure_ascii=False, indent=2) + "\n"
        try:
            with path.open("x", encoding="utf-8") as stream:
                try:
                    stream.write(text)
                    stream.flush()
                except OSError:
                    path.unlink()  # whole or not there
                    raise
        except FileExistsError:
            raise UsageError(str(path), "already exists", fix="choose another name", code="usage.save") from None
        except OSError as error:
            raise UsageError(str(path), "cannot be written", observed=error.strerror, code="usage.save") from None
