"""Architectures of Hugging Face, tiny and with random weights, each in a user's own module; and adapters of peft.

Nothing is downloaded, and nothing is dropped out. Some are evaluated, because in training they draw lots for layers.
Both libraries are asked for when a model is made: they take seconds, and need not be there.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from clipping.fine_cases import Fine
from clipping.fine_modules import CLASSES, VOCABULARY, Make, dense, head

WIDTH = 16
SIZES = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
TEXTS = {"vocab_size": VOCABULARY, "max_position_embeddings": 16, "pad_token_id": 0, "num_labels": CLASSES}
NOTHING_DROPPED = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ENDS = {"bos_token_id": 1, "eos_token_id": 2}


class Wrapper(nn.Module):
    """As users write it: their own module, that calls another with names."""

    def __init__(self, inner: nn.Module, given: str) -> None:
        super().__init__()
        self.inner, self.given = inner, given

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(**{self.given: x}).logits


class Headed(nn.Module):
    """The same around an encoder: the mean over time, and a head."""

    def __init__(self, inner: nn.Module, given: str) -> None:
        super().__init__()
        self.inner, self.given, self.head = inner, given, head(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(**{self.given: x}).last_hidden_state.mean(1))


def hugging_face(name: str) -> Any:
    return getattr(import_module("transformers"), name)


def classifier(name: str, *settings: Mapping[str, Any], kind: str = "Sequence", given: str = "input_ids") -> Make:
    """A model for classification from a configuration."""

    def make() -> nn.Module:
        config = hugging_face(f"{name}Config")(**{key: each[key] for each in settings for key in each})
        return Wrapper(hugging_face(f"{name}For{kind}Classification")(config), given)

    return make


def encoder(model: str, config: str, given: str, **settings: Any) -> Make:
    return lambda: Headed(hugging_face(model)(hugging_face(config)(**settings)), given)


def whisper() -> nn.Module:
    config = hugging_face("WhisperConfig")(
        d_model=WIDTH, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=24, num_mel_bins=8,
        decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=8, max_source_positions=12, encoder_layerdrop=0.0,
        dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, vocab_size=VOCABULARY, pad_token_id=0,
    )  # fmt: skip
    return Headed(hugging_face("WhisperModel")(config).encoder, "input_features")


def evaluated(make: Make) -> Make:
    return lambda: make().eval()


LLAMA = {**SIZES, **TEXTS, **ENDS, "num_key_value_heads": 1, "attention_dropout": 0.0}
IMAGES = {"image_size": 8, "patch_size": 4, "num_channels": 2, "num_labels": CLASSES}
BERTS = {name: Fine("tokens", classifier(name, SIZES, TEXTS, NOTHING_DROPPED))
         for name in ("Bert", "Roberta", "Electra", "DebertaV2", "XLMRoberta", "MPNet")}  # fmt: skip

TRANSFORMERS = {
    **BERTS,
    "DistilBert": Fine("tokens", classifier("DistilBert", TEXTS, {
        "dim": WIDTH, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "dropout": 0.0, "attention_dropout": 0.0,
        "seq_classif_dropout": 0.0})),
    "Albert": Fine("tokens", classifier("Albert", SIZES, TEXTS, NOTHING_DROPPED, {
        "embedding_size": 8, "classifier_dropout_prob": 0.0})),
    "GPT2": Fine("tokens", classifier("GPT2", TEXTS, ENDS, {
        "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 16, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0})),
    "GPTNeoX": Fine("tokens", classifier("GPTNeoX", SIZES, TEXTS, ENDS)),
    "OPT": Fine("tokens", evaluated(classifier("OPT", TEXTS, ENDS, {
        "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 24, "dropout": 0.0,
        "word_embed_proj_dim": WIDTH}))),
    "Llama": Fine("tokens", classifier("Llama", LLAMA)),
    "Mistral": Fine("tokens", classifier("Mistral", LLAMA, {"sliding_window": 4})),
    "Qwen2": Fine("tokens", classifier("Qwen2", LLAMA)),
    "T5 encoder": Fine("tokens", encoder("T5EncoderModel", "T5Config", "input_ids", vocab_size=VOCABULARY, d_kv=8,
                                         d_model=WIDTH, d_ff=24, num_layers=2, num_heads=2, dropout_rate=0.0)),
    "ViT": Fine("images", classifier("ViT", SIZES, IMAGES, NOTHING_DROPPED, kind="Image", given="pixel_values")),
    "ConvNext": Fine("images", classifier("ConvNext", IMAGES, {
        "patch_size": 2, "hidden_sizes": [8, WIDTH], "depths": [1, 1], "num_stages": 2}, kind="Image",
        given="pixel_values")),
    "ResNet, evaluated": Fine("images", evaluated(classifier("ResNet", IMAGES, {
        "embedding_size": 8, "hidden_sizes": [8, WIDTH], "depths": [1, 1], "layer_type": "basic"}, kind="Image",
        given="pixel_values"))),
    "Whisper encoder, evaluated": Fine("spectrum", evaluated(whisper)),
    "Wav2Vec2, evaluated": Fine("sound", evaluated(encoder(
        "Wav2Vec2Model", "Wav2Vec2Config", "input_values", **SIZES, conv_dim=[8, 8], conv_kernel=[10, 4],
        conv_stride=[5, 4], num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        vocab_size=VOCABULARY, mask_time_prob=0.0))),
}  # fmt: skip


def named_dense() -> nn.Module:
    """Layers 0 and 2 are those that adapters are put beside."""
    return dense(nn.ReLU(), nn.Linear(8, 8), nn.ReLU())


def adapted(inner: Make, config: str, **settings: Any) -> Make:
    """A model with adapters."""

    def make() -> nn.Module:
        peft = import_module("peft")
        return peft.get_peft_model(inner(), getattr(peft, f"{config}Config")(**settings))

    return make


def around(name: str, config: str, **settings: Any) -> Make:
    """A model of Hugging Face with adapters, in a user's own module."""
    make = adapted(lambda: TRANSFORMERS[name].make().inner, config, task_type="SEQ_CLS", **settings)
    return lambda: Wrapper(make(), "input_ids")


LAYERS = {"target_modules": ["0", "2"]}
IA3_LAYERS = {"target_modules": ["key", "value", "output.dense"], "feedforward_modules": ["output.dense"]}

ADAPTERS = {
    "LoRA": Fine("table", adapted(named_dense, "Lora", r=2, **LAYERS)),
    "LoRA with rank-stable scale": Fine("table", adapted(
        named_dense, "Lora", r=2, use_rslora=True, bias="all", **LAYERS)),
    "DoRA": Fine("table", adapted(named_dense, "Lora", r=2, use_dora=True, **LAYERS)),
    "IA3": Fine("table", adapted(named_dense, "IA3", feedforward_modules=["2"], **LAYERS)),
    "LoHa": Fine("table", evaluated(adapted(named_dense, "LoHa", r=2, **LAYERS))),
    "LoKr": Fine("table", evaluated(adapted(named_dense, "LoKr", r=2, **LAYERS))),
    "VeRA": Fine("table", adapted(named_dense, "Vera", r=2, target_modules=["2"])),
    "OFT": Fine("table", adapted(named_dense, "OFT", r=2, oft_block_size=0, target_modules=["2"])),
    "LoRA in BERT": Fine("tokens", around("Bert", "Lora", r=2, target_modules=["query", "value"])),
    "IA3 in BERT": Fine("tokens", around("Bert", "IA3", **IA3_LAYERS)),
    "LoRA in GPT-2": Fine("tokens", around("GPT2", "Lora", r=2, target_modules=["c_attn"], fan_in_fan_out=True)),
    "prompt in BERT": Fine("tokens", around("Bert", "PromptTuning", num_virtual_tokens=2)),
}  # fmt: skip
