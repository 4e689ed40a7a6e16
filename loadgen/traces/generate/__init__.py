"""Seeded generators of traces: the same kind, options and seed give the same trace."""
