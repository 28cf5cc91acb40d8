"""Fixed layers: each item by itself, the same frame for any slant, and features that differ alike in all directions."""

import pytest
import torch

from wholegrain.models.fixed_layers import TALL, WIDE, Upright, Whiten

SIDE = 28


def bar(slant: float, height: int = 16, left: float = 0.0) -> torch.Tensor:
    """A stroke that leans, as an image [1, 1, SIDE, SIDE]."""
    middle = (SIDE - 1) / 2
    rows, columns = torch.meshgrid(torch.arange(SIDE) - middle, torch.arange(SIDE) - middle, indexing="ij")
    ink = (3.0 - (columns - left - slant * rows).abs()).clamp(0, 1) * (rows.abs() <= height / 2)
    return ink[None, None]


@pytest.mark.parametrize("slant", [-0.5, 0.3])
@pytest.mark.parametrize("left", [-3.0, 2.0])
def test_a_leaning_stroke_stands_upright_in_the_middle(slant: float, left: float) -> None:
    upright = Upright(SIDE)
    straight, moved = upright(bar(0.0)), upright(bar(slant, left=left))
    # Images of the same stroke in the same frame differ by interpolation alone; unmoved they differ almost everywhere.
    assert (straight - moved).abs().mean() < 0.25 * (bar(0.0) - bar(slant, left=left)).abs().mean()


def test_ink_has_the_standard_spread() -> None:
    image = Upright(SIDE)(bar(0.2, height=14))[0, 0]
    places = torch.linspace(-1, 1, SIDE)
    down, along = image.sum(1) / image.sum(), image.sum(0) / image.sum()
    assert abs(float(down @ places)) < 0.03
    assert abs(float(along @ places)) < 0.03
    assert float((down * places**2).sum().sqrt()) == pytest.approx(2 * TALL, rel=0.1)
    assert float((along * places**2).sum().sqrt()) == pytest.approx(2 * WIDE, rel=0.25)  # clamped: a bar is narrow


def test_an_image_is_treated_by_itself_and_without_ink_stays_empty() -> None:
    images = torch.cat([bar(0.4), torch.zeros(1, 1, SIDE, SIDE), bar(-0.2, height=10)])
    together = Upright(SIDE)(images)
    assert torch.allclose(together, torch.cat([Upright(SIDE)(image[None]) for image in images]))
    assert not together[1].any()


def test_whitening_changes_nothing_until_it_is_fitted() -> None:
    features = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Whiten(3)(features), features)


def test_whitened_features_differ_alike_in_all_directions() -> None:
    draws = torch.Generator().manual_seed(0)
    features = torch.randn(4000, 3, generator=draws) * torch.tensor([5.0, 1.0, 0.5]) + torch.tensor([2.0, 0.0, -1.0])
    features[:, 1] += features[:, 0]
    whitening = Whiten(3)
    whitening.fit(features, ridge=0.0)
    white = whitening(features)
    covariance = torch.cov(white.T)
    assert torch.allclose(covariance, covariance[0, 0] * torch.eye(3), atol=1e-4)
    assert float(white.norm(dim=1).mean()) == pytest.approx(1.0, abs=1e-4)


def test_constant_features_are_not_blown_up() -> None:
    whitening = Whiten(2)
    whitening.fit(torch.ones(10, 2))
    assert torch.isfinite(whitening(torch.ones(4, 2))).all()
