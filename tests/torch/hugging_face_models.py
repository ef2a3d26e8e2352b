"""Small language models of each supported family with random weights, and mini-batches for them."""

import torch
import transformers
from torch import nn

LETTERS, PLACES, SAMPLES = 61, 12, 8
_SIZES = dict(vocab_size=LETTERS, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
              max_position_embeddings=64, attn_implementation="sdpa")
_GROUPED = dict(**_SIZES, num_key_value_heads=2, tie_word_embeddings=False)
_WINDOW = dict(sliding_window=5, use_sliding_window=True, max_window_layers=2)
_SURE = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

FAMILIES = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**_GROUPED)),
    "llama tied": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{**_GROUPED, "tie_word_embeddings": True})),
    "llama dynamic": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **{**_GROUPED, "max_position_embeddings": 8}, rope_parameters=dict(rope_type="dynamic", factor=2.0, rope_theta=1e4))),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**_GROUPED, **_WINDOW)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**_GROUPED, head_dim=8)),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**_GROUPED, sliding_window=5)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=LETTERS, n_embd=32, n_layer=4, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0)),
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**_SIZES, **_SURE)),
}


def made(family, peft=None, dtype=None):
    """The same at every call; `peft`: a configuration of adapters."""
    torch.manual_seed(7)
    model = FAMILIES[family]().to(dtype)
    if peft is not None:
        from peft import get_peft_model

        torch.manual_seed(8)
        model = get_peft_model(model, peft)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:  # zero at first, and then lora_A would have no gradient
                    parameter.normal_(std=0.1)
    return model.train()


def batches(family, padded, steps=3):
    """Mini-batches with labels; `padded`: sentences of several lengths, padding on either side."""
    torch.manual_seed(9)
    made = []
    for _ in range(steps):
        ids = torch.randint(1, LETTERS, (SAMPLES, PLACES))
        labels = ids.clone()
        if family == "bert":
            labels[torch.rand(ids.shape) < 0.7] = -100
        batch = {"input_ids": ids, "labels": labels}
        if padded:
            lengths = torch.randint(3, PLACES + 1, (SAMPLES, 1))
            places = torch.arange(PLACES).expand(SAMPLES, PLACES)
            here = places < lengths
            here[1::2] = here[1::2].flip(1)
            ids[~here], labels[~here] = 0, -100
            batch["attention_mask"] = here.long()
        made.append(batch)
    return made


def places_apart(model):
    """The second place of a tied weight keeps its gradient apart, as stages do: name to parameter."""
    apart = {}
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head.weight is embeddings.weight:
        name = next(name for name, one in model.named_parameters() if one is head.weight)
        head.weight = apart[name] = nn.Parameter(head.weight.detach())
    return apart
