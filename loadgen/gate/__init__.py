"""The gate: holds a live address to the hit ratio that it had."""
