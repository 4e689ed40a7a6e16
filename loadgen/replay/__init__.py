"""Replay: a trace driven against a live fleet, beside what the simulator says of it."""
