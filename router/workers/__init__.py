"""Several processes that serve one port: a supervisor that starts them, and their metrics as one."""
