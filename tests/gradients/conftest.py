"""Models this small are only slowed down by more than one thread."""

import torch

torch.set_num_threads(1)
