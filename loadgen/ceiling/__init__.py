"""The ceiling: what any cache could hold of a log or a trace, by size, replicas and cause of divergence."""
