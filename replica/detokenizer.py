"""From sampled tokens to text, piece by piece: characters are never split, and stop strings never shown."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Protocol

from tokenizers import Tokenizer

from router.chain.chain import pack_tokens

_REPLACEMENT = "�"
# A character has at most four bytes, and a token at least one: longer doubt is no character to come.
_LONGEST_DOUBT = 8


class Detokenizer(Protocol):
    """Turns one answer's tokens into text."""

    def feed(self, token: int) -> str:
        """Take a token; return the text that has become certain, often empty."""

    def rest(self) -> str:
        """Return what is left at the end of the answer."""


class TokenizerDetokenizer:
    """Decodes with a model's tokenizer. Special tokens give no text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Tokens still needed as context, since some tokenizers treat the start of a text apart, ...
        self._context: list[int] = []
        # ... and those whose text is not certain yet.
        self._doubt: list[int] = []

    def feed(self, token: int) -> str:
        """See Detokenizer."""
        self._doubt.append(token)
        text = self._new_text()
        if not text or (text.endswith(_REPLACEMENT) and len(self._doubt) < _LONGEST_DOUBT):
            return ""
        self._context, self._doubt = self._doubt, []
        return text

    def rest(self) -> str:
        """See Detokenizer."""
        text = self._new_text() if self._doubt else ""
        self._doubt = []
        return text

    def _new_text(self) -> str:
        before: str = self._tokenizer.decode(self._context, skip_special_tokens=True)
        whole: str = self._tokenizer.decode(self._context + self._doubt, skip_special_tokens=True)
        return whole[len(before) :]


class WordDetokenizer:
    """For a chain over bytes: a token is four bytes of UTF-8, zero bytes at its end being none."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """See Detokenizer."""
        return self._decoder.decode(pack_tokens([token]).rstrip(b"\0"))

    def rest(self) -> str:
        """See Detokenizer."""
        return self._decoder.decode(b"", True)


class StopScanner:
    """Holds back text that may be the start of a stop string, and ends at the first that is complete."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Take text; return what may be shown. Once `stopped`, nothing more may."""
        if not self._stops:
            return text
        if self.stopped:
            return ""
        text = self._held + text
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        keep = self._doubtful(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> str:
        """Return what was held back in vain."""
        held, self._held = self._held, ""
        return held

    def _doubtful(self, text: str) -> int:
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
