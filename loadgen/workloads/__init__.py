"""Seeded workloads: what the users of a run ask, turn by turn."""
