"""Text to token ids and back: a byte-level BPE from tokenizer.json, decoded token by token."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from coli.engine.foreign import foreign_file
from coli.engine.location import child, readable
from coli.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    import tokenizers

__all__ = ["TextDecoder", "Tokenizer"]

_FILE = "tokenizer.json"
_LIMIT_BYTES = 256 << 20


def _byte_letters() -> dict[str, int]:
    """Return the byte of each letter of byte-level BPE: printable Latin-1 as it is, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if chr(byte) not in letters)
    return letters | {chr(0x100 + i): byte for i, byte in enumerate(others)}


class Tokenizer:
    """The tokenizer of a checkpoint.

    Adds no special tokens by itself. ``vocabulary``: one more than the highest id.
    """

    def __init__(self, model: tokenizers.Tokenizer, path: Path) -> None:
        self._model = model
        self.path = path
        self._added = {token: content.content for token, content in model.get_added_tokens_decoder().items()}
        self._letters = _byte_letters()
        self._bytes: dict[int, bytes] = {}
        ids = [*model.get_vocab(with_added_tokens=True).values(), *self._added]
        self.vocabulary = max(ids, default=-1) + 1

    @classmethod
    def open(cls, folder: Path | str) -> Tokenizer:
        """Open the tokenizer.json of a model folder.

        Raises CheckpointError when it is missing, broken or not byte-level.
        """
        path = Path(folder) / _FILE
        if not path.is_symlink() and not path.exists():
            raise CheckpointError(
                str(path),
                "the model has no tokenizer",
                expected=_FILE,
                fix="download tokenizer.json of the same model, or give token ids with --ids",
                code="checkpoint.no-tokenizer",
            )
        path = child(path.parent, _FILE)
        with readable(path):
            other = foreign_file(path) if path.is_file() else None
        if other is not None:
            raise other
        if not path.is_file() or path.stat().st_size > _LIMIT_BYTES:
            raise _broken(path, f"not a file of at most {_LIMIT_BYTES} bytes")
        import tokenizers

        try:
            model = tokenizers.Tokenizer.from_file(str(path))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the library is not an Exception
            raise _broken(path, str(error)[:300]) from error
        if not isinstance(model.decoder, tokenizers.decoders.ByteLevel):
            raise CheckpointError(
                str(path),
                "only byte-level tokenizers are supported",
                observed=f"decoder {type(model.decoder).__name__}",
                expected="decoder ByteLevel",
                code="checkpoint.tokenizer-kind",
            )
        model.no_truncation()
        model.no_padding()
        return cls(model, path)

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``; special tokens only where the text spells them.

        Raises UsageError for a lone surrogate.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                "the prompt", "it must be text that UTF-8 can hold", observed=str(error)[:200], code="usage.prompt"
            ) from error
        ids: list[int] = self._model.encode(text, add_special_tokens=False).ids
        return ids

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token, perhaps part of a character. Raises UsageError for an unknown id."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._spell(token)
        return known

    def _spell(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        spelled = self._model.id_to_token(token) if 0 <= token < self.vocabulary else None
        if spelled is None:
            raise UsageError(
                f"token id {token}",
                "the tokenizer does not know it",
                expected=f"0 to {self.vocabulary - 1}",
                code="usage.token-id",
            )
        try:
            return bytes(self._letters[letter] for letter in spelled)
        except KeyError:  # an entry that is no byte-level spelling: the reference library shows it as it is
            return spelled.encode()

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ``ids``, special tokens spelled out; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def id_of(self, content: str) -> int | None:
        """Return the id of one token by its text in the vocabulary, for example `</think>`."""
        found: int | None = self._model.token_to_id(content)
        return found


class TextDecoder:
    """Turn bytes into text as they come: a cut character waits for its rest, each byte is looked at once."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, data: bytes) -> str:
        """Return the text that ``data`` completes; may be empty."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """Return U+FFFD when a character never got its rest, else nothing."""
        return self._decoder.decode(b"", final=True)


def _broken(path: Path, observed: str) -> CheckpointError:
    return CheckpointError(
        str(path),
        "the tokenizer cannot be read",
        observed=observed,
        fix="download tokenizer.json again",
        code="checkpoint.tokenizer",
    )
