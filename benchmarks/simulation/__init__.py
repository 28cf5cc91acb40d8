"""A whole federation in one process: virtual time, seeded faults, and the real rounds, guards and ledgers."""
