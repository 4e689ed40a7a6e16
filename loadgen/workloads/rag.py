"""Questions behind documents, drawn from a corpus in which few documents are asked for often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count
from random import Random

from loadgen.workloads.prose import Prose
from loadgen.workloads.session import Ask, Conversation, source

_SYSTEM = "You answer questions from the documents that come with them, in one short sentence."


@dataclass(frozen=True, slots=True)
class Rag:
    """`documents` different documents of `document_tokens` each, out of `corpus_documents`, a question.

    The document of rank i is drawn with a weight of 1 / i ** `zipf_exponent`.
    """

    ask: Ask
    seed: int = 0
    corpus_documents: int = 100
    documents: int = 3
    document_tokens: int = 300
    question_tokens: int = 30
    zipf_exponent: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.documents <= self.corpus_documents:
            raise ValueError("a question takes at least one document, and no more than the corpus has")

    @property
    def turns(self) -> int:
        """Requests a session."""
        return 1

    def sessions(self) -> Iterator[Conversation]:
        """Begin the row of questions anew."""
        corpus = [self._document(rank) for rank in range(self.corpus_documents)]
        weights = list(accumulate((rank + 1) ** -self.zipf_exponent for rank in range(len(corpus))))
        for index in count():
            random = source(self.seed, "question", index)
            drawn = draw_distinct(random, weights, self.documents)
            prose = Prose(random)
            question = "\n\n".join(corpus[rank] for rank in drawn)
            question += f"\n\n{prose.paragraph(self.question_tokens)} {prose.question()}"
            yield Conversation(f"question-{index}", self.ask, _SYSTEM, iter((question,)))

    def _document(self, rank: int) -> str:
        text = Prose(source(self.seed, "document", rank)).paragraph(self.document_tokens)
        return f"Document {rank + 1}: {text}"


def draw_distinct(random: Random, cumulative_weights: list[float], wanted: int) -> list[int]:
    """Draw `wanted` different indices by their weights, in the order drawn."""
    drawn: dict[int, None] = {}
    # Redrawing what is drawn already is quick but for a steep law; a bounded number of times is enough.
    for index in random.choices(
        range(len(cumulative_weights)), cum_weights=cumulative_weights, k=20 * wanted
    ):
        drawn.setdefault(index)
        if len(drawn) == wanted:
            return list(drawn)
    rest = (index for index in range(len(cumulative_weights)) if index not in drawn)
    return [*drawn, *(index for index, _ in zip(rest, range(wanted - len(drawn)), strict=False))]
