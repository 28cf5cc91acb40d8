"""Runs as people read them: one page, its figures, and the words of the guarantee."""
