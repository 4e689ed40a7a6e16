"""Workloads, a load client, the demo and the command line."""
