"""Plain English made from a seed: paragraphs of any length, and questions about them."""

from __future__ import annotations

from random import Random

TOKENS_PER_WORD = 1.25
"""Tokens that a usual English vocabulary of some 50,000 pieces spends on a word of this prose."""

_WORDS = {
    "person": (
        "gardener", "baker", "teacher", "carpenter", "nurse", "sailor", "painter", "farmer",
        "librarian", "mechanic",
        "tailor", "musician", "pilot", "miller", "potter", "clerk",
    ),
    "name": ("Anna", "Ben", "Clara", "David", "Elena", "Frank", "Grace", "Henry", "Irene", "Jonas",
        "Katya", "Liam"),
    "place": (
        "market", "harbour", "old library", "workshop", "school", "railway station", "bakery",
        "town hall", "museum",
        "mill by the river", "hospital", "community garden", "post office", "theatre",
    ),
    "thing": (
        "wooden chairs", "apple trees", "maps", "blue plates", "letters", "baskets of pears",
        "bicycles", "lamps",
        "woollen coats", "copper pots", "notebooks", "window frames", "clay tiles", "fishing nets", "violins",
    ),
    "quality": (
        "heavy", "old", "broken", "beautiful", "expensive", "simple", "fragile", "colourful",
        "useful", "rare",
        "well made", "dusty",
    ),
    "action": (
        "repaired", "painted", "sold", "counted", "carried upstairs", "cleaned", "packed",
        "measured", "replaced",
        "shown to the visitors", "stored in a dry room", "sent by train",
    ),
    "weather": (
        "it rained all morning", "the sun was warm", "a cold wind blew from the sea", "the first snow fell",
        "fog lay over the river", "the sky was clear", "a storm came up in the afternoon",
    ),
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "number": ("three", "four", "six", "seven", "nine", "twelve", "fifteen", "twenty", "thirty", "forty"),
    "time": ("noon", "the evening", "the end of the week", "the next holiday", "breakfast", "the last train"),
    "feeling": ("glad", "worried", "surprised", "tired", "proud", "curious", "patient", "grateful"),
}  # fmt: skip

_SENTENCES = (
    "On {day} the {person} from the {place} brought {number} {thing} and asked whether they could be "
    "{action} before {time}.",
    "{name} said that {number} of the {thing} were {quality}, so they had to be {action} first.",
    "Because {weather}, nobody came to the {place} until {time}.",
    "The {person} was {feeling} to hear that the {thing} had already been {action}.",
    "There were {number} {thing} in the {place}, and most of them looked {quality}.",
    "{name} and {name} walked to the {place} together and talked about the {quality} {thing}.",
    "It took the {person} {number} hours to find out how the {thing} should be {action}.",
    "When {weather}, {name} stayed at the {place} and wrote a list of everything that had to be {action}.",
    "The {person} paid {number} coins for the {thing}, which was more than {name} had expected.",
    "Every {day} the {place} opens early, and the {person} arrives with {quality} {thing}.",
    "My neighbour {name}, who is a {person}, thinks that {quality} {thing} belong in the {place}.",
    "We agreed that {name} would keep the {thing} at the {place} until they were {action}.",
    "The {person} told us that {number} years ago the {place} had no {thing} at all.",
    "If the {thing} are {quality}, the {person} can have them {action} by {time}.",
    "Later {weather}, and {name} felt {feeling} about the {thing} that were left outside.",
)

_QUESTIONS = (
    "What should {name} do with the {thing} now?",
    "How would you explain to the {person} why the {thing} were {action}?",
    "What is the best way to keep {quality} {thing} safe at the {place}?",
    "Which of these problems should the {person} solve first, and why?",
    "Can you suggest a good plan for {day} at the {place}?",
    "What could {name} say to the {person} to make them feel {feeling}?",
    "How many people would you need to have the {thing} {action} before {time}?",
    "What would you ask the {person} next?",
)


class Prose:
    """Writes text; the same random source gives the same text, on every machine and Python."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def question(self) -> str:
        """Return one question."""
        return self._fill(self._random.choice(_QUESTIONS))

    def paragraph(self, tokens: int) -> str:
        """Return whole sentences of about `tokens` tokens: at least that many, less than a sentence more."""
        sentences = []
        words = 0
        while words * TOKENS_PER_WORD < tokens:
            sentences.append(self._fill(self._random.choice(_SENTENCES)))
            words += len(sentences[-1].split())
        return " ".join(sentences)

    def _fill(self, template: str) -> str:
        parts = template.split("{")
        text = parts[0]
        for part in parts[1:]:
            slot, _, rest = part.partition("}")
            text += self._random.choice(_WORDS[slot]) + rest
        return text[0].upper() + text[1:]
