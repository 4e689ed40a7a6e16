"""HTTP/1.1 as the data plane speaks it: a listener for clients, and pooled connections to replicas."""
