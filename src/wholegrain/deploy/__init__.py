"""Federations of real silos: what a silo agrees to, how it answers, how a server asks."""
