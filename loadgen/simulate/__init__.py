"""The simulator: a fleet of queues and caches in virtual time, routed by the router's own policies."""
