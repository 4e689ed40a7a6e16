"""Runners compute the tokens of a batch: `torch_runner` with a model, `echo` without one."""
