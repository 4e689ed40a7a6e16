"""The HTTP surface: reads requests, relays answers."""
