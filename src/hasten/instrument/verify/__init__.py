"""Follows a whole training from its start: losses and counters of each iteration, for `verify`."""
