"""Traces of requests: what arrived when, how long it was, and which blocks its prompt shares with others."""
