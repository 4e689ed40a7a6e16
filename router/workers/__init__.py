"""Several processes that serve one port, and their metrics as one."""
