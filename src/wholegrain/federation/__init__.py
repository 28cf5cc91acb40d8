"""Rounds over silos: messages, averaging, and the only round loop."""
