"""The lint of prompt layouts: which position changes between requests that should share, and its cost."""
