"""Who the replicas are, which of them live, and how loaded they are."""
