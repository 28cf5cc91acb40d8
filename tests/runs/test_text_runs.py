"""Runs on a table of text: the model learns, and its file takes raw text."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import wholegrain as wg
from wholegrain.errors import ModelError, SpecError
from wholegrain.models.model_catalog import build
from wholegrain.runs.model_file import Predictor

pytestmark = pytest.mark.usefixtures("coarse_prices")

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_text"
NOTES = pl.read_csv(EXAMPLE / "notes.csv")
POLICY = {"name": "subject_dp", "rate": 1.0, "clip_norm": 0.3}


def notes(text: wg.Text, rows: pl.DataFrame = NOTES) -> Any:
    target = wg.Target("urgent", ["no", "yes"])
    return wg.from_frame(rows, subject="patient", silo="clinic", target=target, features={"note": text})


def train(data: Any, model: Any, out: Path | None = None, **changes: Any) -> wg.Run:
    settings = {"rounds": {"count": 3, "learning_rate": 5.0}, "items_per_subject": 5, **changes}
    return wg.train(data, model, policy=POLICY, epsilon=4, out=out, **settings)


def test_the_example_learns_from_words_and_its_file_needs_no_tokenizer_beside_it(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    place = tmp_path / "words.json"
    place.write_bytes((EXAMPLE / "tokenizer.json").read_bytes())
    data = notes(wg.Text(24, str(place), public="a list of words"))
    run = train(data, "bag_of_tokens", tmp_path / "run", rounds={"count": 15, "learning_rate": 20.0})
    assert run.accuracy > 0.7
    place.unlink()
    rows = pl.DataFrame({"note": ["chest pain, short of breath at rest", "walks without help"]})
    likely = Predictor.open(tmp_path / "run").predict(rows)["probability: yes"].to_list()
    assert likely[0] > likely[1]


@pytest.mark.parametrize("model", ["causal_transformer", "stacked_lstm", "bigram", "bag_of_tokens"])
def test_models_learn_of_the_tokenizer_what_they_need(model: str, tmp_path: Path) -> None:
    options = {"hidden": 8} if model == "stacked_lstm" else {}
    run = train(
        notes(wg.Text(12, missing=True), NOTES[:60]), {"name": model, "options": options}, tmp_path / "run", rounds=1
    )
    assert run.spec.model.options == {"vocabulary": 81, "padding": 0, **options}
    rows = pl.DataFrame({"note": ["", "no fever"]})
    found = wg.load(tmp_path / "run").predict(rows)
    assert found.equals(Predictor.open(tmp_path / "run").predict(rows))


def test_a_next_token_follows_a_text_of_any_length(tmp_path: Path) -> None:
    target = wg.Target("note", next_token=True)
    data = wg.from_frame(
        NOTES[:60],
        subject="patient",
        silo="clinic",
        target=target,
        features={"note": wg.Text(8, stride=3, missing=True)},
    )
    train(data, "bigram", tmp_path / "run", rounds=1, items_per_subject=40)
    found = wg.load(tmp_path / "run").predict(pl.DataFrame({"note": ["pain", "", "no complaints today; slept well"]}))
    assert set(found["prediction"]) <= set(run_tokens())
    assert len(found) == 3


def run_tokens() -> tuple[str, ...]:
    from wholegrain.data.tokenization import Characters

    return Characters.tokens


def test_a_model_of_numbers_does_not_read_text() -> None:
    with pytest.raises(SpecError, match=r"is text, and the model 'logistic' reads numbers; .*bag_of_tokens"):
        train(notes(wg.Text(12)), "logistic")


TOKENS = ["causal_transformer", "stacked_lstm", "bigram", "bag_of_tokens"]


@pytest.mark.parametrize("name", TOKENS)
@pytest.mark.filterwarnings("ignore:The model's gradients go")  # no trial of a rule has an item that could tell
@pytest.mark.parametrize(("vocabulary", "why"), [(1, "cannot take made-up tokens 0 and 1"), (2, "cannot take all tok")])
def test_too_small_a_vocabulary_is_refused_in_a_sentence(name: str, vocabulary: int, why: str) -> None:
    options = {"vocabulary": vocabulary, "padding": 0}
    with pytest.raises(ModelError, match=f"{why}.*give it a larger vocabulary"):
        train(notes(wg.Text(12)), {"name": name, "options": options})


@pytest.mark.parametrize("name", TOKENS)
def test_padding_at_the_end_changes_nothing(name: str) -> None:
    model = build(name, 9, 3, 0, {"vocabulary": 11, "padding": 0})
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    tokens = torch.randint(1, 11, (4, 6))
    padded = torch.cat([tokens, torch.zeros(4, 3, dtype=torch.int64)], 1)
    assert torch.allclose(model(padded), model(tokens), atol=1e-5)


def test_what_is_padded_at_the_beginning_is_not_attended_to() -> None:
    block = build("causal_transformer", 6, 3, 0, {"vocabulary": 11, "padding": 0}).blocks[0]
    x, present = torch.randn(2, 6, 32), torch.tensor([[False, False, True, True, True, True]] * 2)
    changed = x.clone()
    changed[:, :2] += 1.0
    assert torch.allclose(block(x, present)[:, 2:], block(changed, present)[:, 2:], atol=1e-6)
    assert bool(block(x, present).isfinite().all())
