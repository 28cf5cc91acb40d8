"""Architectures of Hugging Face, tiny and with random weights, each in a user's own module; and adapters of peft.

Nothing is downloaded, and nothing is dropped out. Some are evaluated, because in training they draw lots for layers.
"""

from collections.abc import Callable, Mapping
from typing import Any

import peft
import transformers
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


def classifier(name: str, *settings: Mapping[str, Any], kind: str = "Sequence", given: str = "input_ids") -> Make:
    """A model for classification from a configuration."""

    def make() -> nn.Module:
        config = getattr(transformers, f"{name}Config")(**{key: each[key] for each in settings for key in each})
        return Wrapper(getattr(transformers, f"{name}For{kind}Classification")(config), given)

    return make


def encoder(model: str, config: str, given: str, **settings: Any) -> Make:
    return lambda: Headed(getattr(transformers, model)(getattr(transformers, config)(**settings)), given)


def whisper() -> nn.Module:
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = transformers.WhisperConfig(
        d_model=WIDTH, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=24, num_mel_bins=8,
        decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=8, max_source_positions=12, encoder_layerdrop=0.0,
        dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, vocab_size=VOCABULARY, pad_token_id=0,
    )  # fmt: skip
    return Headed(WhisperEncoder(config), "input_features")


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


def adapted(config: Callable[[], peft.PeftConfig], inner: Make) -> Make:
    return lambda: peft.get_peft_model(inner(), config())


def named_dense() -> nn.Module:
    """Layers 0 and 2 are those that adapters are put beside."""
    return dense(nn.ReLU(), nn.Linear(8, 8), nn.ReLU())


def tiny_bert() -> nn.Module:
    settings = SIZES | TEXTS | NOTHING_DROPPED
    return transformers.BertForSequenceClassification(transformers.BertConfig(**settings))


def tiny_gpt() -> nn.Module:
    return TRANSFORMERS["GPT2"].make().inner


LAYERS = {"target_modules": ["0", "2"]}
QUERIES = {"target_modules": ["query", "value"], "task_type": "SEQ_CLS"}


def around(config: Callable[[], peft.PeftConfig], inner: Make) -> Make:
    """A model of Hugging Face with adapters, in a user's own module."""
    return lambda: Wrapper(peft.get_peft_model(inner(), config()), "input_ids")


ADAPTERS = {
    "peft: LoRA": Fine("table", adapted(lambda: peft.LoraConfig(r=2, **LAYERS), named_dense)),
    "peft: LoRA with rank-stable scale": Fine(
        "table", adapted(lambda: peft.LoraConfig(r=2, use_rslora=True, bias="all", **LAYERS), named_dense)),
    "peft: DoRA": Fine("table", adapted(lambda: peft.LoraConfig(r=2, use_dora=True, **LAYERS), named_dense)),
    "peft: IA3": Fine("table", adapted(lambda: peft.IA3Config(feedforward_modules=["2"], **LAYERS), named_dense)),
    "peft: LoHa": Fine("table", adapted(lambda: peft.LoHaConfig(r=2, **LAYERS), named_dense)),
    "peft: LoKr": Fine("table", adapted(lambda: peft.LoKrConfig(r=2, **LAYERS), named_dense)),
    "peft: VeRA": Fine("table", adapted(lambda: peft.VeraConfig(r=2, target_modules=["2"]), named_dense)),
    "peft: OFT": Fine("table", adapted(
        lambda: peft.OFTConfig(r=2, oft_block_size=0, target_modules=["2"]), named_dense)),
    "peft: LoRA in BERT": Fine("tokens", around(lambda: peft.LoraConfig(r=2, **QUERIES), tiny_bert)),
    "peft: IA3 in BERT": Fine("tokens", around(
        lambda: peft.IA3Config(target_modules=["key", "value", "output.dense"], feedforward_modules=["output.dense"],
                               task_type="SEQ_CLS"), tiny_bert)),
    "peft: LoRA in GPT-2": Fine("tokens", around(
        lambda: peft.LoraConfig(r=2, target_modules=["c_attn"], task_type="SEQ_CLS", fan_in_fan_out=True), tiny_gpt)),
    "peft: prompt in BERT": Fine("tokens", around(
        lambda: peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2), tiny_bert)),
}  # fmt: skip

CASES = TRANSFORMERS | ADAPTERS
