"""A sidecar: follows the KV events of the engine in its pod, and serves digests of what it holds."""
