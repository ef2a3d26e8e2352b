"""A small random Llama learns to spell like the King James Bible: LoRA in 4 ranks, alone or launched."""
import gzip
import pathlib

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import millrace.torch

torch.manual_seed(1)
text = gzip.open(pathlib.Path(__file__).parents[2] / "data/king_james.txt.gz", "rt").read()[:100_000]
letters = sorted(set(text))
tokens = torch.tensor([letters.index(letter) for letter in text])
train, held_out = tokens[:-10_000], tokens[-10_000:]

model = LlamaForCausalLM(LlamaConfig(vocab_size=len(letters), hidden_size=64, intermediate_size=128, num_hidden_layers=4,
                                     num_attention_heads=4, max_position_embeddings=32))
lora = LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear", modules_to_save=["lm_head"])
model = get_peft_model(model, lora)
model.print_trainable_parameters()

pipeline = millrace.torch.from_transformers(model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
                                            ranks=4, micro_batches=4, schedule="zb-h1", clip_norm=1.0)


def batch(data, samples=16):
    starts = torch.randint(len(data) - 32, (samples,)).tolist()
    rows = torch.stack([data[start : start + 32] for start in starts])
    return {"input_ids": rows, "labels": rows}


for step in range(40):
    report = pipeline.step(batch(train))
    if step % 10 == 0:
        print(f"step {step}: loss {report.mean_loss:.3f}")
print(f"held out: {pipeline.evaluate(batch(held_out, 128)).mean_loss:.3f}")
