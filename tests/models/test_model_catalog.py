"""Models by name: drawn from the seed alone, and refused where an item's influence cannot be told."""

import sys
from types import ModuleType
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from torch import nn

from wholegrain.clipping.parameters import flatten
from wholegrain.errors import ModelError, SpecError
from wholegrain.models.model_catalog import MODELS, build, check_model


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A caller's own module with factories."""
    module = ModuleType("own_models")
    module.linear = lambda features, classes, scale=1.0: nn.Linear(features, classes)
    module.not_a_model = lambda features, classes: "a string"
    module.norm = lambda features, classes: nn.Sequential(nn.BatchNorm1d(features), nn.Linear(features, classes))
    module.constant = 3
    monkeypatch.setitem(sys.modules, "own_models", module)
    return module


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_decides_the_parameters(name: str) -> None:
    first, again, other = (flatten(build(name, features=16, classes=3, seed=seed)) for seed in (4, 4, 5))
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (name in ("logistic", "bag_of_tokens"))  # which start at zero


@pytest.mark.parametrize("name", MODELS)
def test_building_neither_reads_nor_disturbs_the_global_generators(name: str) -> None:
    built = []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            before, numpy_before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
            built.append(flatten(build(name, features=16, classes=3, seed=0)))
            assert torch.equal(torch.random.get_rng_state(), before)
            assert (np.random.get_state()[1] == numpy_before).all()
    assert torch.equal(*built)


@pytest.mark.parametrize("shape", [(16,), (1, 4, 4)], ids=["a row", "an image"])
@pytest.mark.parametrize("name", [name for name, entry in MODELS.items() if not entry.reads_tokens])
def test_models_score_each_class(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, features=16, classes=4, seed=0)
    assert model(torch.zeros(5, *shape)).shape == (5, 4)


@pytest.mark.parametrize("name", [name for name, entry in MODELS.items() if entry.reads_tokens])
def test_text_models_score_each_class_after_windows_of_any_length(name: str) -> None:
    model = build(name, features=80, classes=4, seed=0)
    for length in (1, 7, 80):
        assert model(torch.zeros(5, length, dtype=torch.int64)).shape == (5, 4)


@pytest.mark.parametrize(("name", "parameters"), [("leaf_cnn", 6_603_710), ("small_cnn", 23_614)])
def test_image_models_have_as_many_parameters_as_they_say(name: str, parameters: int) -> None:
    assert len(flatten(build(name, features=784, classes=62, seed=0))) == parameters


@pytest.mark.parametrize("features", [15, 25])
def test_image_models_refuse_what_is_no_square_image(features: int) -> None:
    with pytest.raises(SpecError, match="square images"):
        build("leaf_cnn", features=features, classes=2, seed=0)


@pytest.mark.parametrize(("hidden", "linear"), [((), 1), ((7,), 2), ((7, 6, 5), 4)])
def test_mlp_has_the_widths_that_were_asked_for(hidden: tuple[int, ...], linear: int) -> None:
    model = build("mlp", features=3, classes=2, seed=0, options={"hidden": hidden})
    layers = [module for module in model if isinstance(module, nn.Linear)]
    assert len(layers) == linear
    assert [layer.out_features for layer in layers] == [*hidden, 2]


@pytest.mark.parametrize(("name", "suggested"), [("logistics", "logistic"), ("mpl", "mlp")])
def test_an_unknown_name_is_refused_with_the_closest_one(name: str, suggested: str) -> None:
    with pytest.raises(SpecError, match=f"'{name}'.*did you mean '{suggested}'"):
        build(name, 3, 2, seed=0)


def test_a_name_that_is_close_to_nothing_lists_what_there_is() -> None:
    with pytest.raises(SpecError, match="known: logistic, mlp"):
        build("transformer", 3, 2, seed=0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("logistic", {"hidden": [3]}),
        ("mlp", {"hiden": [3]}),
        ("mlp", {"hidden": 3}),
        ("mlp", {"hidden": ["wide"]}),
        ("mlp", {"hidden": [-1]}),
    ],
    ids=str,
)
def test_wrong_options_are_refused_by_name(name: str, options: dict) -> None:
    with pytest.raises(SpecError, match=f"'{name}'"):
        build(name, 3, 2, 0, options)


@pytest.mark.usefixtures("own")
def test_a_callers_own_factory() -> None:
    model = build("own_models:linear", features=3, classes=2, seed=0, options={"scale": 2.0})
    assert isinstance(model, nn.Linear)
    assert torch.equal(flatten(model), flatten(build("own_models:linear", 3, 2, seed=0)))


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere_at_all:linear", "cannot be imported: No module named 'nowhere_at_all'; put its folder on PYTHONPATH"),
        ("own_models:missing", "cannot be imported: the module 'own_models' has no 'missing'"),
        (":linear", "cannot be imported"),
        ("own_models:", "cannot be imported"),
        ("own_models:constant", "not callable"),
    ],
)
def test_a_factory_that_is_not_there_is_refused_by_name(name: str, reason: str) -> None:
    with pytest.raises(SpecError, match=f"'{name}'.*{reason}"):
        build(name, 3, 2, seed=0)


@pytest.mark.usefixtures("own")
def test_a_factory_of_something_else_is_refused() -> None:
    with pytest.raises(ModelError, match="returned str"):
        build("own_models:not_a_model", 3, 2, seed=0)


@pytest.mark.usefixtures("own")
def test_a_factorys_model_is_checked_too() -> None:
    with pytest.raises(ModelError, match=r"'0' \(BatchNorm1d\)"):
        build("own_models:norm", 3, 2, seed=0)


@pytest.mark.parametrize(
    "layer",
    [nn.BatchNorm1d(3), nn.BatchNorm2d(3), nn.BatchNorm3d(3), nn.SyncBatchNorm(3)],
    ids=lambda m: type(m).__name__,
)
def test_layers_that_mix_items_are_refused_wherever_they_are(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Tanh(), layer))
    with pytest.raises(ModelError, match=rf"'1\.1' \({type(layer).__name__}\).*GroupNorm"):
        check_model(model)


@pytest.mark.parametrize("layer", [nn.GroupNorm(1, 3), nn.LayerNorm(3)], ids=lambda m: type(m).__name__)
def test_layers_within_an_item_are_welcome(layer: nn.Module) -> None:
    assert check_model(layer) is layer


def test_a_model_without_trainable_parameters_is_refused() -> None:
    frozen = nn.Linear(3, 2)
    for parameter in frozen.parameters():
        parameter.requires_grad_(False)
    for model in (frozen, nn.Tanh()):
        with pytest.raises(ModelError, match="no trainable parameters"):
            check_model(model)


def test_running_statistics_are_refused_and_instance_norm_without_them_is_not() -> None:
    check_model(nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, affine=True)))
    with pytest.raises(ModelError, match="InstanceNorm2d"):
        check_model(nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True)))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mlp", {"hidden": "x"}, "model.options.hidden, it should be a list (it is 'x')."),
        ("mlp", {"hidden": 3}, "model.options.hidden, it should be a list (it is 3)."),
        ("mlp", {"hidden": [8, "a"]}, "model.options.hidden, it should be a valid integer (it is 'a')."),
        ("mlp", {"hidden": [0]}, "model.options.hidden, it should be greater than 0 (it is 0)."),
        ("ft_transformer", {"layers": 1.5}, "model.options.layers, it should be a valid integer (it is 1.5)."),
        ("ft_transformer", {"layers": True}, "model.options.layers, it should be a valid integer (it is True)."),
        (
            "causal_transformer",
            {"dropout": "high"},
            "model.options.dropout, it should be a valid number (it is 'high').",
        ),
        ("bigram", {"padding": -1}, "model.options.padding, it should be greater than or equal to 0 (it is -1)."),
        ("mlp", {"hidden": [1 << 40]}, "hidden, it should be less than or equal to 65536 (it is 1099511627776)."),
        ("mlp", {"hidden": [10**20 - 1]}, f"it should be less than or equal to 65536 (it is {10**20 - 1})."),
        ("ft_transformer", {"layers": 10**12}, f"layers, it should be less than or equal to 1000 (it is {10**12})."),
        ("bag_of_tokens", {"vocabulary": 10**9}, f"it should be less than or equal to {2**24} (it is {10**9})."),
        ("bigram", {"padding": 10**30}, f"padding, it should be less than {2**24} (it is {10**30})."),
        ("causal_transformer", {"dropout": 1.0}, "dropout, it should be less than 1 (it is 1.0)."),
        ("causal_transformer", {"dropout": -0.1}, "dropout, it should be greater than or equal to 0 (it is -0.1)."),
        ("causal_transformer", {"dropout": float("nan")}, "dropout, it should be a finite number (it is nan)."),
        ("mlp", {"hiden": [8]}, "has no option 'hiden' (did you mean 'hidden'?); it has hidden."),
        ("mlp", {"features": 3}, "has no option 'features'; it has hidden."),
        ("mlp", {"hid\x1b]0;x\x07\nPROVED": 3}, "has no option 'hid ]0;x PROVED'; it has hidden."),
    ],
)
def test_an_option_of_the_wrong_kind_is_told_with_its_key(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError) as told:
        build(name, 4, 4, 0, options)
    assert str(told.value).endswith(words)


@pytest.mark.parametrize("name", [name for name, entry in MODELS.items() if entry.reads_tokens])
def test_the_padding_is_a_token_of_the_vocabulary(name: str) -> None:
    build(name, 6, 4, 0, {"vocabulary": 9, "padding": 8})
    with pytest.raises(SpecError, match=r"its padding \(9\) must be a token of its vocabulary, which has 9"):
        build(name, 6, 4, 0, {"vocabulary": 9, "padding": 9})


BOUNDED = [
    (name, option, hint)
    for name, entry in MODELS.items()
    for option, hint in get_type_hints(entry.build, include_extras=True).items()
    if option not in ("features", "classes", "return") and hint is not bool
]


@pytest.mark.parametrize(("name", "option", "hint"), BOUNDED, ids=[f"{name}.{option}" for name, option, _ in BOUNDED])
def test_every_number_of_a_model_has_a_bound(name: str, option: str, hint: Any) -> None:
    """Beyond it, memory would be full before anybody is told why."""
    with pytest.raises(SpecError, match=rf"in model\.options\.{option}, it should be less than"):
        build(name, 16, 4, 0, {option: [10**12] if "Sequence" in str(hint) else 10**12})


def test_what_a_factory_of_ones_own_raises_is_told_with_its_kind(own: ModuleType) -> None:
    own.lookup = lambda features, classes: {}["x"]
    own.refusing = lambda features, classes: build("mlp", features, classes, 0, {"hidden": [0]})
    with pytest.raises(SpecError, match=r"The model 'own_models:lookup' cannot be built: KeyError: 'x'\."):
        build("own_models:lookup", 4, 4, 0)
    with pytest.raises(
        SpecError, match=r"own_models:refusing' cannot be built: The model 'mlp' cannot be built: in mod"
    ):
        build("own_models:refusing", 4, 4, 0)


def test_a_callable_that_does_not_say_what_it_takes_is_called(own: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class Factory:
        __signature__ = "none"

        def __call__(self, features: int, classes: int, scale: float = 1.0) -> nn.Module:
            return nn.Linear(features, classes)

    monkeypatch.setattr(own, "silent", Factory(), raising=False)
    assert isinstance(build("own_models:silent", 4, 2, 0, {"scale": 2.0}), nn.Linear)
