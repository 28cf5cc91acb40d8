"""Attacks on our own training: lower bounds on ε to hold against the proved ones."""
