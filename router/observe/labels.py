"""Labels made from what clients send: bounded, so that no request can grow the number of series."""

from __future__ import annotations

# What everything beyond the bounds is called.
OTHER = "other"
# Fleets serve a few models, and maybe some adapters of each; a histogram of each is a hundred lines.
_MOST_MODELS = 16
_LONGEST_MODEL = 128

# Turns of a conversation by their number; ranges further on, where hits hardly change any more.
TURNS = ("1", "2", "3", "4-7", "8+")


class ModelLabels:
    """The models that get a label of their own: the first few that a replica was asked for."""

    def __init__(self, most: int = _MOST_MODELS) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, model: str, served: bool) -> str:
        """Return the label of a model. `served` is whether a replica serves it: only such become known."""
        if model in self._known:
            return model
        if served and model and len(model) <= _LONGEST_MODEL and len(self._known) < self._most:
            self._known.add(model)
            return model
        return OTHER


def turn_label(turn: int) -> str:
    """Return the label of a conversation's turn, empty below 1: what is no conversation has none."""
    if turn <= 3:
        return TURNS[turn - 1] if turn > 0 else ""
    return TURNS[3] if turn <= 7 else TURNS[4]
