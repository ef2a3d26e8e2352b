# A training program as a user writes it, for one process or for `millrace launch`: it has no word of ranks but in
# what `--deed RANK WORD` asks of one of them.
import argparse
import itertools
import os
import signal
import sys
import time

import numpy as np

import millrace

flags = argparse.ArgumentParser()
flags.add_argument("--schedule", default="1f1b")
flags.add_argument("--ranks", type=int, default=2)
flags.add_argument("--deed", nargs=2, default=["-1", ""])
flags.add_argument("--made-here", action="store_true")
flags.add_argument("--folder", default="")
flags.add_argument("--resume", action="store_true")
flags.add_argument("--fit", action="store_true")
flags.add_argument("--validate", action="store_true")
flags.add_argument("--recompute", action="store_true")
flags.add_argument("--restartable", action="store_true")
flags = flags.parse_args()
DEED = flags.deed[1] if flags.deed[0] in ("all", os.environ.get("MILLRACE_RANK", "0")) else ""


class Layer(millrace.Stage):
    """y = tanh(x w); the last one has half the squared distance to the targets as its loss."""

    def __init__(self, number):
        self.name = f"layers.{number}.weight"
        self.parameters = {self.name: np.random.default_rng(number).normal(0, 0.4, (6, 6)).astype(np.float32)}

    def forward(self, unit, x):
        if unit.step == 1 and unit.micro_batch == 2:
            in_a_pass()
        y = np.tanh(x @ self.parameters[self.name])
        unit.kept = [x, y]
        if unit.targets is not None:
            unit.kept.append(y - unit.targets[0])
            unit.add_loss(0.5 * float(np.square(unit.kept[2]).sum()), len(x), correct=1, evaluated=2)
        return y

    def backward_input(self, unit, *gradients):
        x, y = unit.kept[:2]
        gradient = gradients[0] if gradients else unit.kept[2] * np.float32(unit.loss_scale)
        unit.kept = [x, gradient * (1 - y * y)]
        return unit.kept[1] @ self.parameters[self.name].T

    def backward_weight(self, unit):
        x, gradient = unit.kept
        self.gradients[self.name] += x.T @ gradient


def no_luck():
    raise ZeroDivisionError("out of luck")


def in_a_pass():
    if DEED == "fails":
        no_luck()
    if DEED == "hangs":
        while True:
            signal.pause()
    if DEED == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    if DEED == "dies" or DEED == "dies once" and millrace.join_launch().attempt == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def before():
    if DEED == "never joins":
        print("it does not join", file=sys.stderr, flush=True)
        while True:
            time.sleep(0.05)  # a signal that comes just before it began is heard
    if DEED == "is refused":
        millrace.generate("zbv")
    if DEED == "asks first":
        place = millrace.join_launch({"corpus": "the digits"})
        print("rank", place.rank, "of", place.world, millrace.join_launch() is place)
    if DEED == "has another corpus":
        millrace.join_launch({"corpus": "another"})


def between():
    if DEED == "throws":
        raise RuntimeError("so be it")
    if DEED == "exits":
        sys.exit(3)
    if DEED == "ends":
        sys.exit()


def fit_or_continue(trainer, x, t):
    """As a program that may be started again does."""
    attempt = millrace.join_launch().attempt
    if attempt > 0:
        trainer.resume(flags.folder)
        print("resumed", file=sys.stderr)

    def dies(report):
        if DEED == "dies later" and attempt == 0 and report.global_step == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    trainer.fit(x, t, on_step=dies)
    print("weights", trainer.weights_hash())


def main():
    before()
    made = []

    def layer(number):
        made.append(number)
        return Layer(number)

    program = millrace.generate(flags.schedule, ranks=flags.ranks, micro_batches=4)
    copies, stages = program.shape.replicas, program.shape.stages
    trainer = millrace.Trainer(
        program, layer if flags.made_here else [Layer(number) for number in list(range(stages)) * copies],
        optimizer=millrace.AdamW(0.02), clip_norm=1, save_folder=flags.folder, epochs=2, batch_size=8,
        keep_best="loss" if flags.validate else None, early_stopping=2 if flags.validate else None, min_delta=1e-2,
        save_every=1 if flags.restartable else None, recompute=flags.recompute, seed=7 if DEED == "has another seed" else 1)
    if flags.resume:
        trainer.resume(flags.folder)
        print("resumed", trainer.global_step, trainer.weights_hash())
        return
    generator = np.random.default_rng(0)
    x, t = generator.normal(0, 1, (13, 6)).astype(np.float32), generator.normal(0, 1, (13, 6)).astype(np.float32)
    if flags.restartable:
        return fit_or_continue(trainer, x, t)
    until = time.monotonic() + (90 if DEED == "goes on" else 0)  # whatever becomes of the test that would end it
    for step in itertools.count():
        if step >= 5 and time.monotonic() > until:
            break
        if DEED == "shuffles":
            order = np.random.default_rng(os.getpid() + step).permutation(len(x))
            x, t = x[order], t[order]
        report = trainer.step(x, t)
        if step == 0:
            print("the first step is done", file=sys.stderr, flush=True)
            between()
    if flags.fit:
        fitted = trainer.fit(x, t, validation=0.25 if flags.validate else None)
        print("fit", *(epoch.mean_loss for epoch in fitted.epochs), fitted.early_stop)
        print("validations", *((one.mean_loss, one.is_best, one.without_improvement) for one in fitted.validations))
    print("loss", report.mean_loss, "norm", report.gradient_norm, "samples", report.samples)
    print("score", trainer.evaluate(x, t))
    print("weights", trainer.weights_hash())
    if flags.folder:
        trainer.save()
        print("saved")
    predicted = trainer.predict(x)
    if predicted is not None:
        print("predicted", predicted.shape, file=sys.stderr)
    if flags.made_here:
        print("made", len(made), "of", stages * copies, file=sys.stderr)


main()
