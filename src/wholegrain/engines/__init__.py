"""Ways to reach silos. Each is one method; what a round means is not theirs to decide."""
