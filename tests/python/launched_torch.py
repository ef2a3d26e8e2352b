# A training file of PyTorch for one process or for `millrace launch`: it has no word of ranks but in --deed, what the
# last stage's rank does in the second step.
import argparse
import sys

import torch
from torch import nn
from torch_models import Block, Embed, next_word_loss, sentences, small_gpt, words_of

import millrace
import millrace.torch

flags = argparse.ArgumentParser()
flags.add_argument("--schedule", default="zb-h1")
flags.add_argument("--ranks", type=int, default=2)
flags.add_argument("--deed", default="")
flags.add_argument("--folder", default="")
flags.add_argument("--made-here", action="store_true")
flags = flags.parse_args()
made, steps = [], 0


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if flags.deed == "forward" and steps == 1:
            raise ZeroDivisionError("out of luck")
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if flags.deed == "backward" and steps == 1:
            raise ZeroDivisionError("out of luck")
        return gradient


class Last(nn.Module):
    def __init__(self, head):
        super().__init__()
        self.dropout, self.head = nn.Dropout(0.1), head

    def forward(self, x):
        return self.head(Fails.apply(self.dropout(x)))


def stage(number):
    made.append(number)
    torch.manual_seed(number)
    return Embed() if number == 0 else nn.Linear(16, 11) if number == flags.ranks - 1 else Block()


def whole():
    model = small_gpt()
    model[-1] = Last(model[-1])
    return model


program = millrace.generate(flags.schedule, ranks=flags.ranks, micro_batches=4)
pipeline = millrace.torch.Pipeline(stage if flags.made_here else whole(), schedule=program, loss=next_word_loss,
                                   loss_weight=words_of, optimizer=millrace.AdamW(0.02), clip_norm=1.0,
                                   save_folder=flags.folder)
inputs, targets = sentences()
for steps in range(3):
    report = pipeline.step(inputs, targets)
print("loss", report.mean_loss, "norm", report.gradient_norm)
print("score", pipeline.evaluate(inputs, targets))
print("weights", pipeline.weights_hash())
predicted = pipeline.predict(inputs)
if flags.folder:
    pipeline.save()
    for state_dict in (pipeline.state_dict, pipeline.model.state_dict):
        try:
            torch.save({name: value.clone() for name, value in state_dict().items()},
                       f"{flags.folder}/state-{millrace.join_launch().rank}")
        except millrace.Error as refusal:
            print(refusal, file=sys.stderr)
    print("saved")
if flags.made_here:
    print("made", len(made), "predicts", predicted is not None)
