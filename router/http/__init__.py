"""HTTP/1.1 as the data plane speaks it: a server for clients and pooled connections to replicas."""
