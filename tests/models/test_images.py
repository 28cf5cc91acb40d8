"""Views of an image, averaged: what they are, and that nothing else of a model changes."""

import pytest
import torch

from wholegrain.errors import SpecError
from wholegrain.models.images import SHIFTS, VIEWS, MeanOfViews, one_view
from wholegrain.models.model_catalog import build
from wholegrain.runs.pretraining import PretrainSpec, pretrain


def test_views_are_alike_in_all_directions() -> None:
    for views in VIEWS:
        shifts = set(SHIFTS[:views])
        assert len(shifts) == views
        assert shifts == {(-down, along) for down, along in shifts} == {(along, down) for down, along in shifts}


def test_the_mean_is_over_moved_images() -> None:
    """A dot in the middle is seen in as many places as there are views; one in a corner partly leaves the image."""
    dot = torch.zeros(1, 1, 8, 8)
    dot[0, 0, 4, 4] = 5.0
    seen = MeanOfViews(5, torch.nn.Identity())(dot)
    assert seen[0, 0, 3:6, 3:6].tolist() == [[0, 1, 0], [1, 1, 1], [0, 1, 0]]
    corner = MeanOfViews(5, torch.nn.Identity())(dot.roll((-4, -4), (2, 3)))
    assert float(corner.sum()) == 3.0


def test_one_view_is_the_model_without_views() -> None:
    plain, viewed = (build("upright_cnn", 64, 3, 0, {"width": 8, "code": 4, "views": views}) for views in (1, 9))
    images = torch.rand(3, 64)
    assert [p.tolist() for p in plain.parameters()] == [p.tolist() for p in viewed.parameters()]
    with one_view(viewed):
        assert torch.equal(plain(images), viewed(images))
    assert not torch.allclose(plain(images), viewed(images))


def test_a_start_is_learnt_from_one_view_and_whitened_by_all() -> None:
    """The parameters before whitening are those without views; mean and matrix are not."""
    starts = [
        pretrain(
            PretrainSpec.model_validate(
                {
                    "public": "drawn from typefaces",
                    "data": {"source": "glyphs", "options": {"writers": 6, "items": 10, "classes": 3}},
                    "model": {"name": "upright_cnn", "options": {"width": 8, "code": 4, "views": views}},
                    "training": {"batch_size": 16, "held_out": 0.3},
                }
            )
        ).tensors
        for views in (1, 5)
    ]
    plain, viewed = starts
    assert torch.equal(plain["3.weight"], viewed["3.0.weight"])
    assert not torch.equal(plain["12.mean"], viewed["4.mean"])


def test_other_numbers_of_views_are_refused() -> None:
    with pytest.raises(SpecError, match="views must be one of 1, 5, 9, 13, not 3"):
        build("upright_cnn", 64, 3, 0, {"views": 3})
