"""The words of a decision: ask, fleet view, ranking, ring, and what a policy may remember."""
