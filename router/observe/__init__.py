"""What the router tells: the ledger of outcomes and the metrics made of it."""
