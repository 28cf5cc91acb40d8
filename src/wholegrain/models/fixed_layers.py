"""Layers that nothing private ever trains: fixed functions of one item, made from public knowledge alone."""

import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample

# Spread of ink about its middle, as a share of the side, down and along: that of a digit as MNIST frames it.
TALL, WIDE = 0.2, 0.12
# An image without ink is left as it is.
NO_INK = 1e-6


class Upright(nn.Module):
    """An image [item, 1, side, side] moved, straightened and stretched so that its ink has a standard place and spread.

    Each image is treated by its own moments. What a typeface and a hand do differently in slant and proportions is gone
    after it, whoever wrote.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side
        self.register_buffer("places", torch.linspace(-1, 1, side), persistent=False)
        self.places: Tensor

    def forward(self, images: Tensor) -> Tensor:
        """The images in their standard frame."""
        moved: Tensor = grid_sample(
            images,
            affine_grid(self._frames(images[:, 0]), list(images.shape), align_corners=True),
            align_corners=True,
        )
        return moved

    def _frames(self, images: Tensor) -> Tensor:
        """[item, 2, 3] from a place in the standard frame to the place in the image that is shown there."""
        ink = images.clamp(min=0) + NO_INK
        mass = ink.sum((1, 2))
        down, along = ink.sum(2) / mass[:, None], ink.sum(1) / mass[:, None]
        top, left = down @ self.places, along @ self.places
        y, x = self.places - top[:, None], self.places - left[:, None]
        tall, wide = (down * y * y).sum(1), (along * x * x).sum(1)
        slant = (torch.einsum("nyx,ny,nx->n", ink, y, x) / mass / tall).clamp(-1, 1)
        height = (tall.sqrt() / (2 * TALL)).clamp(0.6, 1.5)
        width = ((wide - slant**2 * tall).clamp(min=1e-4).sqrt() / (2 * WIDE)).clamp(0.5, 1.5)
        none = torch.zeros_like(top)
        rows = [torch.stack([width, slant * height, left], 1), torch.stack([none, height, top], 1)]
        return torch.stack(rows, 1)


class Whiten(nn.Module):
    """Features with a fixed mean taken away and a fixed matrix applied: those of public data, once it has been fitted.

    Until then it changes nothing. Directions in which public features hardly differ are stretched, so that a step in
    any direction costs a private run the same noise.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("matrix", torch.eye(width))
        self.mean: Tensor
        self.matrix: Tensor

    def forward(self, features: Tensor) -> Tensor:
        """Features [item, feature], whitened."""
        return (features - self.mean) @ self.matrix

    def fit(self, features: Tensor, ridge: float = 0.1) -> None:
        """Take mean and spread from public features [item, feature]; what comes out has a length of about one.

        `ridge`, as a share of the mean variance, keeps directions that are all but constant from being blown up.
        """
        centred = (features - features.mean(0)).double()
        covariance = centred.T @ centred / len(features)
        variance = covariance.diagonal().mean().clamp(min=torch.finfo(torch.float32).tiny)
        values, vectors = torch.linalg.eigh(covariance + ridge * variance * torch.eye(len(covariance)))
        matrix = vectors @ torch.diag(values.rsqrt()) @ vectors.T
        length = (centred @ matrix).norm(dim=1).mean().clamp(min=NO_INK)
        self.mean.copy_(features.mean(0))
        self.matrix.copy_((matrix / length).to(self.matrix.dtype))
