"""Trains small language models for three steps and saves them; alone, or as a rank of `millrace launch`."""

import sys

import torch
from hugging_face_models import batches, made
from peft import LoraConfig

import millrace
import millrace.torch

ranks, folder, *names = sys.argv[1:]
lora = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"])
for name in names:
    family = name.removesuffix(" lora")
    model = made(family, lora if family != name else None)
    pipeline = millrace.torch.from_transformers(model, optimizer=torch.optim.AdamW(model.parameters(), 1e-2),
                                                ranks=int(ranks), micro_batches=4, schedule="zb-h1", clip_norm=1.0)
    for batch in batches(family, padded=True):
        report = pipeline.step(batch)
        print(report.mean_loss, report.gradient_norm)
    print("weights", pipeline.weights_hash())
    state = pipeline.state_dict()
    here = millrace.join_launch()
    if here.rank == (here.world - 1) // 2:  # with four ranks, one that has neither the first stage nor the last
        model.save_pretrained(f"{folder}/{name}", state_dict=state)
