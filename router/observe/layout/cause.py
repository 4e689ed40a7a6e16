"""The causes for which prompts that should share a prefix part, and the rule that mends each."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """What kind of change comes first between two prompts that hold the same behind it."""

    DATE = "date"
    IDENTIFIER = "identifier"
    NUMBER = "number"
    TOOL_ORDER = "tool_order"
    TOOL_SET = "tool_set"
    KEY_ORDER = "key_order"
    WHITE_SPACE = "white_space"
    VARIABLE = "variable"
    RETRIEVAL = "retrieval"
    EXAMPLES = "examples"
    SLIDING_WINDOW = "sliding_window"
    ROLLING_COMPACTION = "rolling_compaction"
    COMPACTION = "compaction"
    REWRITTEN = "rewritten"
    KEYS = "keys"


WORDS: dict[Cause, str] = {
    Cause.DATE: "a date or a time",
    Cause.IDENTIFIER: "an identifier",
    Cause.NUMBER: "a number",
    Cause.TOOL_ORDER: "the same tools in another order",
    Cause.TOOL_SET: "other tools",
    Cause.KEY_ORDER: "JSON keys in another order",
    Cause.WHITE_SPACE: "white space",
    Cause.VARIABLE: "a short text that differs, ahead of what is shared",
    Cause.RETRIEVAL: "retrieved text ahead of what is shared",
    Cause.EXAMPLES: "other examples, or in another order",
    Cause.SLIDING_WINDOW: "the oldest messages dropped, turn by turn",
    Cause.ROLLING_COMPACTION: "the history summarised anew every few turns",
    Cause.COMPACTION: "the history cut or summarised once",
    Cause.REWRITTEN: "an earlier message rewritten or left out",
    Cause.KEYS: "equal text under another key",
}

RULES: dict[Cause, str] = {
    Cause.DATE: "Stable first: put dates and times into the last message, or round them to the day.",
    Cause.IDENTIFIER: "Stable first: ids of requests and users belong behind shared text, or in metadata.",
    Cause.NUMBER: "Stable first: move counters and numbers that change into the last message.",
    Cause.TOOL_ORDER: "Fixed tool order: sort the tools by name before sending.",
    Cause.TOOL_SET: "Fixed tool set: send all tools always, and say in the last message which may be used.",
    Cause.KEY_ORDER: "Fixed key order: serialise tools and JSON with sorted keys.",
    Cause.WHITE_SPACE: "Send text as it was: the same white space and line ends every time.",
    Cause.VARIABLE: "Stable first: what differs by user or request goes behind what all share.",
    Cause.RETRIEVAL: "Retrieval last: put retrieved text behind instructions and history.",
    Cause.EXAMPLES: "Fixed examples: one list in one order; if they must differ, put them last.",
    Cause.SLIDING_WINDOW: "Append only: let the history grow, then cut it by half, not at every turn.",
    Cause.ROLLING_COMPACTION: "One clean compaction when the context is full, not a new summary every turn.",
    Cause.COMPACTION: "A clean break costs the kept tail once; keep it rare.",
    Cause.REWRITTEN: "Append only: send earlier messages just as they were sent before.",
    Cause.KEYS: "Equal text shares only under the same model, adapter and salt: one salt a tenant, no finer.",
}

# What a good layout has too, at times: told, but no fault.
ACCEPTED = frozenset({Cause.COMPACTION})
