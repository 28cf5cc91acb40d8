"""Clipped sums of gradients: the only thing that a policy needs of a model and a batch."""
