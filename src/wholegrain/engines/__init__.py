"""Engines carry a round's task to the silos and bring their updates back; they know nothing of privacy."""
