"""Models by name, and the check that a model's gradients can be told apart item by item."""
