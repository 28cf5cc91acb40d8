"""BERT, GPT-2 and adapters of Hugging Face's transformers as workloads: built from configs, with random parameters.

Four layers of width 256. Dropout is 0 in the configs, since Opacus asks for models in training mode. transformers
4.57.1 and, for adapters, peft have to be installed.
"""

from typing import Any

from torch import nn

from wholegrain.models.named_inputs import from_transformers

WORDS = 4000
DEEP, WIDE, HEADS = 4, 256, 4


def bert(features: int, classes: int) -> nn.Module:
    """BertForSequenceClassification."""
    return from_transformers(_bert(features, classes))


def gpt2(features: int, classes: int) -> nn.Module:
    """GPT2ForSequenceClassification."""
    import transformers

    config = transformers.GPT2Config(
        **_sizes(classes),
        n_embd=WIDE,
        n_layer=DEEP,
        n_head=HEADS,
        n_positions=features,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return from_transformers(transformers.GPT2ForSequenceClassification(config))


def bert_with_lora(features: int, classes: int) -> nn.Module:
    """BERT whose queries and values have adapters of rank 8; the head is trained, too."""
    import peft

    config = peft.LoraConfig(r=8, lora_dropout=0.0, target_modules=["query", "value"], task_type="SEQ_CLS")
    return from_transformers(peft.get_peft_model(_bert(features, classes), config))


def _bert(features: int, classes: int) -> Any:
    import transformers

    config = transformers.BertConfig(
        **_sizes(classes),
        hidden_size=WIDE,
        num_hidden_layers=DEEP,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDE,
        max_position_embeddings=features,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForSequenceClassification(config)


def _sizes(classes: int) -> dict[str, int]:
    """A vocabulary with one word more than is drawn, which stands for padding."""
    return {"vocab_size": WORDS + 1, "pad_token_id": WORDS, "num_labels": classes}
