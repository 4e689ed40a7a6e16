"""The gateway: names prompt prefixes, ranks replicas, relays answers. Imports nothing else of kvring."""
