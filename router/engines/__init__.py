"""Engines that are not ours: one file each says how it tells its load and what it is."""
