"""What routers and replicas share through Redis; nothing here is ever waited for by a request."""
