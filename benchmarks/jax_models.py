"""The models of workloads.py once more, in jax: functions of torch's parameters by name, and of a batch."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Parameters = Mapping[str, Any]
HEADS = 4


def mlp(p: Parameters, x: Any) -> Any:
    """16-64-2 with tanh [item, feature]."""
    return _linear(p, "3.", jnp.tanh(_linear(p, "1.", x)))


def leaf_cnn(p: Parameters, x: Any) -> Any:
    """Two convolutions with pooling, two linear layers [item, pixel]."""
    x = x.reshape(len(x), 1, 28, 28)
    for name in "2.", "5.":
        x = jax.lax.conv(x, p[name + "weight"], (1, 1), "SAME") + p[name + "bias"][:, None, None]
        # A maximum of rectified values is the rectified maximum, and there are fewer of those.
        x = jax.nn.relu(jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"))
    return _linear(p, "11.", jax.nn.relu(_linear(p, "9.", x.reshape(len(x), -1))))


def stacked_lstm(p: Parameters, tokens: Any) -> Any:
    """Embedding, two LSTM layers, two linear layers on the last output [item, position]."""
    x = p["embedding.weight"][tokens].swapaxes(0, 1)
    for layer in range(2):
        x = _lstm(p, f"_l{layer}", x)
    return _linear(p, "outer.", jax.nn.relu(_linear(p, "inner.", x[-1])))


def _lstm(p: Parameters, layer: str, x: Any) -> Any:
    """All outputs of one layer [position, item, unit]; what the inputs bring to the gates is one product."""
    mapped = x @ p["lstm.weight_ih" + layer].T + p["lstm.bias_ih" + layer] + p["lstm.bias_hh" + layer]
    recurrent = p["lstm.weight_hh" + layer].T

    def move(state: tuple[Any, Any], now: Any) -> tuple[tuple[Any, Any], Any]:
        i, f, g, o = jnp.split(now + state[0] @ recurrent, 4, axis=-1)
        cell = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
        out = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (out, cell), out

    start = jnp.zeros((x.shape[1], recurrent.shape[0]), x.dtype)
    return jax.lax.scan(move, (start, start), mapped)[1]


def transformer(p: Parameters, tokens: Any) -> Any:
    """Embedding, torch's encoder layers (norm last, relu), mean, linear [item, position]."""
    x = p["0.weight"][tokens]
    for k in 1, 2:
        qkv = x @ p[f"{k}.self_attn.in_proj_weight"].T + p[f"{k}.self_attn.in_proj_bias"]
        x = _norm(p, f"{k}.norm1.", x + _linear(p, f"{k}.self_attn.out_proj.", _attend(*jnp.split(qkv, 3, -1))))
        hidden = jax.nn.relu(_linear(p, f"{k}.linear1.", x))
        x = _norm(p, f"{k}.norm2.", x + _linear(p, f"{k}.linear2.", hidden))
    return _linear(p, "4.", x.mean(1))


def bert(p: Parameters, tokens: Any, root: str = "model.", head: str = "classifier.", adapted: bool = False) -> Any:
    """BertForSequenceClassification without masks; `adapted`, queries and values have adapters of LoRA."""
    project = _adapted if adapted else _linear
    stem = root + "bert.embeddings."
    places = p[stem + "position_embeddings.weight"][: tokens.shape[1]]
    x = p[stem + "word_embeddings.weight"][tokens] + places + p[stem + "token_type_embeddings.weight"][0]
    x = _norm(p, stem + "LayerNorm.", x, 1e-12)
    for k in range(4):
        name = f"{root}bert.encoder.layer.{k}."
        own = name + "attention.self."
        seen = _attend(project(p, own + "query.", x), _linear(p, own + "key.", x), project(p, own + "value.", x))
        x = _norm(
            p, name + "attention.output.LayerNorm.", x + _linear(p, name + "attention.output.dense.", seen), 1e-12
        )
        hidden = jax.nn.gelu(_linear(p, name + "intermediate.dense.", x), approximate=False)
        x = _norm(p, name + "output.LayerNorm.", x + _linear(p, name + "output.dense.", hidden), 1e-12)
    return _linear(p, root + head, jnp.tanh(_linear(p, root + "bert.pooler.dense.", x[:, 0])))


def gpt2(p: Parameters, tokens: Any) -> Any:
    """GPT2ForSequenceClassification: the score of the last position."""
    root = "model.transformer."
    x = p[root + "wte.weight"][tokens] + p[root + "wpe.weight"][: tokens.shape[1]]
    for k in range(4):
        name = f"{root}h.{k}."
        qkv = _product(p, name + "attn.c_attn.", _norm(p, name + "ln_1.", x))
        x = x + _product(p, name + "attn.c_proj.", _attend(*jnp.split(qkv, 3, -1), causal=True))
        hidden = jax.nn.gelu(_product(p, name + "mlp.c_fc.", _norm(p, name + "ln_2.", x)), approximate=True)
        x = x + _product(p, name + "mlp.c_proj.", hidden)
    return _norm(p, root + "ln_f.", x)[:, -1] @ p["model.score.weight"].T


def _linear(p: Parameters, name: str, x: Any) -> Any:
    return x @ p[name + "weight"].T + p[name + "bias"]


def _product(p: Parameters, name: str, x: Any) -> Any:
    """Hugging Face's Conv1D: a linear layer whose weight is kept the other way round."""
    return x @ p[name + "weight"] + p[name + "bias"]


def _adapted(p: Parameters, name: str, x: Any) -> Any:
    """A frozen layer and its update of low rank; peft scales it by alpha / rank, which is 1 here."""
    update = x @ p[name + "lora_A.default.weight"].T @ p[name + "lora_B.default.weight"].T
    return _linear(p, name + "base_layer.", x) + update


def _norm(p: Parameters, name: str, x: Any, epsilon: float = 1e-5) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return scaled * p[name + "weight"] + p[name + "bias"]


def _attend(queries: Any, keys: Any, values: Any, causal: bool = False) -> Any:
    items, positions, width = queries.shape
    q, k, v = (x.reshape(items, positions, HEADS, -1).swapaxes(1, 2) for x in (queries, keys, values))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(width // HEADS)
    if causal:
        scores = jnp.where(np.tri(positions, dtype=bool), scores, -jnp.inf)
    return (jax.nn.softmax(scores, -1) @ v).swapaxes(1, 2).reshape(items, positions, width)


LORA = {"root": "model.base_model.model.", "head": "classifier.modules_to_save.default.", "adapted": True}
MODELS: Mapping[str, Callable[[Parameters, Any], Any]] = {
    "cnn128": leaf_cnn,
    "cnn512": leaf_cnn,
    "lstm100": stacked_lstm,
    "mlp256": mlp,
    "transformer64": transformer,
    "bert256": bert,
    "gpt2256": gpt2,
    "lora256": partial(bert, **LORA),
}
