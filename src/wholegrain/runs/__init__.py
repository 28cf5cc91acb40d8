"""Runs: a spec in, a record out. No terminal code here."""
