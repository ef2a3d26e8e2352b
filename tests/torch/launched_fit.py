"""A training by fit() as a rank of several: `launched_fit.py FOLDER [steps=N] [resume] [stop=WHAT:STEP] [watch=FOLDER]`.
Prints one line of JSON: how far it came, the weights' hash, its validations."""

import json
import os
import signal
import sys
import time

import torch
from torch import nn

import millrace
import millrace.torch

SCHEDULE = os.environ.get("SCHEDULE", "zb-h1")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))


def data() -> tuple:
    inputs = torch.randn(120, 8, generator=torch.Generator().manual_seed(1))
    return inputs, (inputs.sum(1) > 0).long()


def stop_at(what: str, step: int, pipeline: millrace.torch.Pipeline) -> None:
    """Stops rank 1 by SIGSTOP inside a pass, the norm or the optimizer of a step."""
    if pipeline.rank != 1:
        return

    def stopping(call):
        def stopped(*arguments, **keywords):
            if pipeline.mini_batches == step:
                if what == "sleep":
                    time.sleep(5)
                else:
                    os.kill(os.getpid(), signal.SIGSTOP)
            return call(*arguments, **keywords)
        return stopped

    if what == "optimizer":
        pipeline.optimizer.step = stopping(pipeline.optimizer.step)
    elif what == "norm":
        millrace.torch.gradients.host_values = stopping(millrace.torch.gradients.host_values)
    else:
        stage = next(iter(pipeline._stages.values()))
        stage.backward_weight = stopping(stage.backward_weight)


def train(folder: str, *words: str, schedule: str = SCHEDULE) -> dict:
    """What the program prints."""
    options = dict(word.split("=") if "=" in word else (word, "") for word in words)
    trained = model()
    optimizer = torch.optim.AdamW(trained.parameters(), 3e-3)
    pipeline = millrace.torch.Pipeline(
        trained, loss=nn.CrossEntropyLoss(), optimizer=optimizer,
        lr_scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5), clip_norm=0.5,
        schedule=schedule, ranks=2, micro_batches=4, save_folder=folder)
    resumed = pipeline.resume() if "resume" in options or millrace.launch.place().attempt else ""
    if "stop" in options and millrace.launch.place().attempt == 0:
        what, step = options["stop"].split(":")
        stop_at(what, int(step), pipeline)
    watched = {name: f"{options['watch']}/{file}" for name, file in (
        ("log", "log.jsonl"), ("metrics", "run.prom"), ("report", "run.html"))} if "watch" in options else {}
    if "log" in options:
        watched["log"] = options["log"]
    if "apart" in options:
        watched["seed"] = 1 + pipeline.rank
    report = pipeline.fit(data(), **watched, epochs=4, batch_size=32, steps=int(options["steps"]) if "steps" in options else None,
                          validation=0.1, validate_every=3, keep_best="loss",
                          early_stopping=int(options.get("early_stopping", 0)), min_delta=float(options.get("delta", 0)), save_every=4)
    return {"resumed": str(resumed), "steps": pipeline.mini_batches, "updates": pipeline.global_step,
            "hash": pipeline.weights_hash(), "epochs": [one.mean_loss for one in report.epochs],
            "validations": [[one.step, one.mean_loss, one.is_best] for one in report.validations],
            "early_stop": report.early_stop}


if __name__ == "__main__":
    ended = train(*sys.argv[1:])
    if millrace.launch.place().rank == 0:
        print(json.dumps(ended))
