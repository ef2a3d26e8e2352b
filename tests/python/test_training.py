# Stages in Python train by every schedule to the bits of a plain loop, and a traceback says where.
import gc
import os
import pathlib
import re
import subprocess
import sys
import weakref

import numpy as np
import pytest

import millrace


class Multiply(millrace.Stage):
    """y = tanh(x w); the last one adds half the squared distance to the targets."""

    def __init__(self, number, width=5, last=False):
        generator = np.random.default_rng(number)
        weight = generator.standard_normal((width, width), dtype=np.float32) / 2
        self.name, self.last = f"layers.{number}.weight", last
        self.parameters = {self.name: weight}

    def forward(self, unit, x):
        y = np.tanh(x @ self.parameters[self.name])
        unit.kept = [x, y, None]
        if not self.last:
            return y
        if unit.targets is not None:
            error = y - unit.targets[0]
            unit.add_loss(0.5 * float((error.astype(np.float64) ** 2).sum()), len(x))
            unit.kept[2] = error
        return y

    def backward_input(self, unit, *gradients):
        x, y, error = unit.kept
        gradient = gradients[0] if gradients else error * np.float32(unit.loss_scale)
        unit.kept[2] = gradient * (1 - y * y)
        return unit.kept[2] @ self.parameters[self.name].T

    def backward_weight(self, unit):
        x, _, gradient = unit.kept
        self.gradients[self.name] += x.T @ gradient


def model(count):
    return [Multiply(number, last=number == count - 1) for number in range(count)]


def data(samples=13, width=5):
    generator = np.random.default_rng(7)
    return (generator.standard_normal((samples, width), dtype=np.float32),
            generator.standard_normal((samples, width), dtype=np.float32) / 4)


class PlainUnit:
    targets = loss_scale = kept = None
    training, loss = True, 0.0

    def add_loss(self, total, weight):
        self.loss += total


def plain_loop(stages, inputs, targets, micro_batches, steps, rate):
    """Gradient descent by hand, one thread, no library. The rate is a power of two, so that its product is exact."""
    for stage in stages:
        stage.gradients = {name: np.zeros_like(value) for name, value in stage.parameters.items()}
    losses = []
    for _ in range(steps):
        loss = 0.0
        for x, t in zip(np.array_split(inputs, micro_batches), np.array_split(targets, micro_batches)):
            units = [PlainUnit() for _ in stages]
            units[-1].targets, units[-1].loss_scale = (t,), 1.0 / len(inputs)
            for stage, unit in zip(stages, units):
                x = stage.forward(unit, x)
            gradients = ()
            for stage, unit in reversed(list(zip(stages, units))):
                gradients = (stage.backward_input(unit, *gradients),)
                stage.backward_weight(unit)
            loss += units[-1].loss
        for stage in stages:
            for name, value in stage.parameters.items():
                value -= np.float32(rate) * stage.gradients[name]
                stage.gradients[name][...] = 0
        losses.append(loss / len(inputs))
    return losses


CASES = {
    "1f1b": {}, "gpipe": {}, "zb-h1": {}, "zb-auto": {}, "interleaved": {"chunks": 2}, "zb-v": {}, "v-min": {},
    "bfs": {"chunks": 2},
}


@pytest.mark.parametrize("options", [{}, {"recompute": True}, {"executor": "flow-graph"}, {"executor": "ranks"}], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_schedule_gives_the_bits_of_a_plain_loop(name, options):
    program = millrace.generate(name, ranks=2, micro_batches=4, **CASES[name])
    assert program.accumulation().ascending
    inputs, targets = data()
    ours, theirs = model(program.shape.stages), model(program.shape.stages)
    losses = plain_loop(theirs, inputs, targets, 4, steps=3, rate=0.125)
    trainer = millrace.Trainer(program, ours, optimizer=millrace.Sgd(0.125), **options)
    reports = [trainer.step(inputs, targets) for _ in range(3)]
    assert [report.mean_loss for report in reports] == losses
    for one, other in zip(ours, theirs):
        assert one.parameters[one.name].tobytes() == other.parameters[other.name].tobytes()
    assert trainer.global_step == 3 and reports[-1].samples == 13


def test_a_stage_with_one_backward_gives_the_same_bits_and_a_warning():
    class NotSplit:
        def __init__(self, stage):
            self.stage, self.parameters = stage, stage.parameters

        def forward(self, unit, x):
            return self.stage.forward(unit, x)

        def backward(self, unit, *gradients):
            self.stage.gradients = self.gradients
            given = self.stage.backward_input(unit, *gradients)
            self.stage.backward_weight(unit)
            return given

    inputs, targets = data()
    hashes = set()
    for stages in (model(2), [NotSplit(stage) for stage in model(2)]):
        trainer = millrace.Trainer(millrace.generate("zb-h1", 2, 4), stages, optimizer=millrace.Sgd(0.1))
        trainer.step(inputs, targets)
        hashes.add(trainer.weights_hash())
    assert len(hashes) == 1
    assert len(trainer.warnings()) == 2 and "backward" in trainer.warnings()[0]


def test_a_schedule_of_ones_own_trains():
    mine = millrace.Program([["0F0", "0F1", "0I0", "0I1", "0W0", "0W1"], ["1F0", "1B0", "1F1", "1B1"]])
    inputs, targets = data(8)
    trainer = millrace.Trainer(mine, model(2), optimizer=millrace.AdamW(0.01))
    first = trainer.step(inputs, targets).mean_loss
    for _ in range(50):
        last = trainer.step(inputs, targets).mean_loss
    assert last < first / 2
    assert [len(rank) for rank in trainer.timeline] == [6, 4]
    assert trainer.evaluate(inputs, targets).mean_loss < last * 1.01
    assert trainer.predict(inputs).shape == (8, 5)


@pytest.mark.parametrize("executor", ["sequential", "flow-graph", "ranks"])
def test_several_losses_have_the_bits_of_a_loop(executor):
    """Stages 1 and 2 both take what stage 0 gives, and have a loss each."""
    factor, micro_batches = 0.3, 4
    program = millrace.generate("1f1b", 3, micro_batches).connected([(0, 0, 1, 0), (0, 0, 2, 0)], [1, 2])
    inputs, targets = data()
    ours, theirs = ([Multiply(0), Multiply(1, last=True), Multiply(2, last=True)] for _ in range(2))
    for stage in theirs:
        stage.gradients = {stage.name: np.zeros_like(stage.parameters[stage.name])}
    losses = [0.0, 0.0]
    for x, t in zip(np.array_split(inputs, micro_batches), np.array_split(targets, micro_batches)):
        units = [PlainUnit() for _ in theirs]
        y = theirs[0].forward(units[0], x)
        for stage, unit, scale in zip(theirs[1:], units[1:], (factor, 1.0)):
            unit.targets, unit.loss_scale = (t,), scale / len(inputs)
            stage.forward(unit, y)
        theirs[0].backward_input(units[0], sum(stage.backward_input(unit) for stage, unit in zip(theirs[1:], units[1:])))
        for stage, unit in zip(theirs, units):
            stage.backward_weight(unit)
        losses = [total + unit.loss for total, unit in zip(losses, units[1:])]
    trainer = millrace.Trainer(program, ours, optimizer=millrace.Sgd(0.125), executor=executor, loss_weights=[factor, 1])
    report = trainer.step(inputs, targets)
    assert report.other_losses == {1: losses[0] / 13} and report.mean_loss == losses[1] / 13
    for one, other in zip(ours, theirs):
        assert np.array_equal(one.parameters[one.name], other.parameters[one.name] - np.float32(0.125) * other.gradients[one.name])
    with pytest.raises(millrace.InvalidArgument, match="got 1 loss weights; 2 of the stages have a loss"):
        millrace.Trainer(program, ours, loss_weights=[1])
    with pytest.raises(millrace.InvalidArgument, match="numbers, at least 0 and finite"):
        millrace.Trainer(program, ours, loss_weights=[1, float("nan")])


def test_micro_batches_accumulate_over_several_passes():
    inputs, targets = data(16)
    hashes = []
    for micro_batches, accumulate in ((8, 1), (4, 2)):
        trainer = millrace.Trainer(millrace.generate("1f1b", 2, micro_batches), model(2), accumulate=accumulate)
        trainer.step(inputs, targets)
        hashes.append(trainer.weights_hash())
    assert hashes[0] == hashes[1]


def test_a_checkpoint_goes_on_with_the_same_bits(tmp_path):
    inputs, targets = data()
    program = millrace.generate("1f1b", 2, 4)
    whole = millrace.Trainer(program, model(2), save_folder=str(tmp_path))
    whole.step(inputs, targets)
    folder = whole.save()
    whole.step(inputs, targets)
    resumed = millrace.Trainer(millrace.generate("zb-h1", 2, 4), [Multiply(0), Multiply(1, last=True)])
    assert resumed.resume(tmp_path) == folder
    resumed.step(inputs, targets)
    assert resumed.weights_hash() == whole.weights_hash()


def test_validation_leaves_the_bits_and_trains_on_no_held_sample():
    (inputs, targets), heard, hashes = data(20), [], []
    for validation in (None, (inputs[15:], targets[15:])):
        trainer = millrace.Trainer(millrace.generate("1f1b", 2, 4), model(2), batch_size=5, epochs=3, validate_every=2)
        report = trainer.fit(inputs[:15], targets[:15], validation=validation, on_validation=heard.append)
        hashes.append(trainer.weights_hash())
    assert hashes[0] == hashes[1]
    assert report.validations == tuple(heard) and [one.step for one in heard] == [2, 4, 6, 8]
    assert heard[0].samples == 5 and not heard[0].is_best and report.early_stop == ""
    share = millrace.Trainer(millrace.generate("1f1b", 2, 4), model(2), batch_size=5, epochs=3, validate_every=2)
    again = share.fit(inputs, targets, validation=0.25)
    assert share.weights_hash() == hashes[0]
    assert [one.mean_loss for one in again.validations] == [one.mean_loss for one in heard]


def test_a_resumed_fit_keeps_the_best_and_the_count(tmp_path):
    inputs, targets = data(20)

    def trainer(folder, **more):
        return millrace.Trainer(millrace.generate("1f1b", 2, 4), model(2), optimizer=millrace.Sgd(4.0), learning_rate="constant",
                                batch_size=5, epochs=40, keep_best="loss", early_stopping=4, keep=1, save_folder=str(tmp_path / folder), **more)

    whole = trainer("whole")
    report = whole.fit(inputs, targets, validation=0.25)
    losses = [one.mean_loss for one in report.validations]
    assert report.early_stop.startswith("validation loss did not improve in 4 validations; it was ")
    assert losses.index(min(losses)) == len(losses) - 5

    class Enough(Exception):
        pass

    def stop(validation):
        if validation.without_improvement == 2:
            raise Enough

    half = trainer("half")
    with pytest.raises(Enough):
        half.fit(inputs, targets, validation=0.25, on_validation=stop)
    rest = trainer("half")
    rest.resume(tmp_path / "half")
    assert rest.fit(inputs, targets, validation=0.25).early_stop == report.early_stop
    assert rest.weights_hash() == whole.weights_hash()
    best = trainer("other")
    best.resume(tmp_path / "half" / "best")
    held = best.evaluate(inputs[15:], targets[15:])
    assert held.mean_loss == min(losses)


def test_names_in_no_decay_do_not_decay():
    class Still(millrace.Stage):
        no_decay = {"bias"}

        def __init__(self):
            self.parameters = {name: np.ones(3, np.float32) for name in ("weight", "bias")}

        def forward(self, unit, x):
            unit.add_loss(0.0, len(x))

        def backward(self, unit):
            return None

    stage = Still()
    trainer = millrace.Trainer(millrace.generate("1f1b", 1, 2), [stage], optimizer=millrace.Sgd(0.5, weight_decay=0.5))
    trainer.step(*data())
    assert stage.parameters["weight"].tolist() == [0.75] * 3 and stage.parameters["bias"].tolist() == [1] * 3


class Mean(Multiply):
    """Its loss is a mean over the samples of a unit, and so is its gradient; its weight is `weigh`."""

    def __init__(self, number, weigh=len):
        super().__init__(number, last=True)
        self.weigh, self.calls = weigh, []

    def forward(self, unit, x):
        self.calls.append((len(x), unit.training))
        y = np.tanh(x @ self.parameters[self.name])
        error = y - unit.targets[0]
        unit.add_loss(0.5 * float((error.astype(np.float64) ** 2).sum()) / len(x), self.weigh(x))
        unit.kept = [x, y, error / np.float32(len(x))]
        return y


def test_a_loss_that_is_a_mean_is_refused_in_the_first_step():
    inputs, targets = data()
    before = Multiply(1).parameters["layers.1.weight"]
    for micro_batches in (1, 4):
        stages = [Multiply(0), Mean(1)]
        trainer = millrace.Trainer(millrace.generate("1f1b", 2, micro_batches), stages, optimizer=millrace.Sgd(0.1))
        with pytest.raises(millrace.StepError, match="stage 1's loss is a mean: .* over its halves; unit.add_loss takes the sum"):
            trainer.step(inputs, targets)
        assert np.array_equal(stages[1].parameters["layers.1.weight"], before)


def test_a_mean_that_weighs_one_is_taken_as_it_is():
    stages = [Multiply(0), Mean(1, weigh=lambda x: 1)]
    trainer = millrace.Trainer(millrace.generate("1f1b", 2, 4), stages, optimizer=millrace.Sgd(0.1))
    assert trainer.step(*data(), weight=4).loss_weight == 4
    trainer.step(*data(), weight=4)
    assert stages[1].calls == [(2, False), (2, False), (4, True), (3, True), (3, True), (3, True)] + [
        (4, True), (3, True), (3, True), (3, True)]


class Fails(Multiply):
    where = None

    def broken(self, here, unit):
        if self.where == here and unit.micro_batch == 2:
            raise ZeroDivisionError("no luck in " + here)

    def forward(self, unit, x):
        self.broken("forward", unit)
        return super().forward(unit, x)

    def backward_input(self, unit, *gradients):
        self.broken("backward_input", unit)
        return super().backward_input(unit, *gradients)

    def backward_weight(self, unit):
        self.broken("backward_weight", unit)
        super().backward_weight(unit)


@pytest.mark.parametrize("executor", ["sequential", "flow-graph", "ranks"])
@pytest.mark.parametrize("where", ["forward", "backward_input", "backward_weight"])
def test_a_traceback_in_a_stage_is_told_and_the_next_step_works(where, executor):
    inputs, targets = data()
    stages = [Multiply(0), Fails(1, last=True)]
    trainer = millrace.Trainer(millrace.generate("zb-h1", 2, 4), stages, optimizer=millrace.Sgd(0.1), executor=executor)
    stages[1].where = where
    with pytest.raises(millrace.StepError) as failed:
        trainer.step(inputs, targets)
    sentence = str(failed.value)
    assert f"no luck in {where}" in sentence and 'test_training.py", line' in sentence and "in broken" in sentence
    assert "rank 1" in sentence and "stage 1" in sentence and "micro-batch 2" in sentence
    assert failed.value.rank == 1 and failed.value.action[0] == "1" and failed.value.action[-1] == "2"
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    stages[1].where = None
    reference = millrace.Trainer(millrace.generate("1f1b", 2, 4), model(2), optimizer=millrace.Sgd(0.1))
    reference.step(inputs, targets)
    trainer.step(inputs, targets)
    assert trainer.weights_hash() == reference.weights_hash()


def test_ctrl_c_in_a_stage_is_ctrl_c():
    class Interrupted(Multiply):
        def forward(self, unit, x):
            raise KeyboardInterrupt

    trainer = millrace.Trainer(millrace.generate("1f1b", 1, 2), [Interrupted(0, last=True)])
    with pytest.raises(KeyboardInterrupt):
        trainer.step(*data())


def test_every_keyword_reaches_the_trainer(tmp_path):
    (inputs, targets), hashes = data(16), []
    every = dict(
        accumulate=1, accumulate_order="ascending", optimizer=millrace.Sgd(0.125), shard_optimizer=False, learning_rate="constant",
        warm_up=0, total_updates=0, clip_norm=None, loss_scale="none", max_skipped=3, parameters=[], frozen=[], tied=[], loss_weights=[],
        seed=1, batch_size=16, last_batch="drop", epochs=2, steps=0, recompute=False, executor="sequential",
        threads_per_rank=1, save_folder=str(tmp_path), save_every="30s", save_errors="stop", keep=1, keep_every=0,
        validate_every="2ep", keep_best="none", early_stopping=0, min_delta=0.0)
    documented = re.findall(r"^(\w+): ", millrace.Trainer.__init__.__doc__.split("Keywords:")[1], re.MULTILINE)
    assert set(every) == set(documented)
    for more in ({}, {"loss_scale": "static:4"}, {"parameters": ["*:lr=0.5"]}, {"batch_size": 9}):
        trainer = millrace.Trainer(millrace.generate("1f1b", 2, 4), model(2), **{**every, **more, "save_folder": str(tmp_path / str(len(hashes)))})
        trainer.fit(inputs, targets)
        assert len(list((tmp_path / str(len(hashes))).glob("step-*"))) == 1  # keep
        hashes.append((trainer.weights_hash(), trainer.global_step))
    assert hashes[1] == hashes[0] and hashes[2][0] != hashes[0][0]
    assert [steps for _, steps in hashes] == [2, 2, 2, 2]  # last_batch


def test_what_does_not_fit_is_refused():
    program, (inputs, targets) = millrace.generate("1f1b", 2, 4), data()

    def refused(sentence, call, kind=millrace.InvalidArgument):
        with pytest.raises(kind, match=sentence):
            call()

    def trainer(*stages, **options):
        return millrace.Trainer(program, stages or model(2), **options)

    refused("^the program needs 2 stages, got 1; a callable stage", lambda: trainer(Multiply(0)))
    refused("stage 0 has no forward", lambda: trainer(object(), object()))
    refused("stage 1.*no float32 array", lambda: trainer(Multiply(0), Sixty(1)))
    refused("known are|did you mean", lambda: trainer(optimizer="adamv"))
    refused(r"^Trainer has no argument 'learning_rte'; did you mean 'learning_rate'\?$", lambda: trainer(learning_rte="cosine"))
    refused("^Trainer has no argument 'lr': the optimizer has it, optimizer=millrace.AdamW", lambda: trainer(lr=1e-3))
    refused("^shard_optimizer 1: must be true or false$", lambda: trainer(shard_optimizer=1))
    refused("^keep 0: must be from 1 to 1000000$", lambda: trainer(keep=0))
    refused("^recompute every-4: must be true or false$", lambda: trainer(recompute="every-4"))
    refused("^epochs many: must be from 0 to 1000000000$", lambda: trainer(epochs="many"))
    refused(r"^Trainer.step has no argument 'wieght'; did you mean 'weight'\?$", lambda: trainer().step(inputs, wieght=1))
    refused("^save_every 5: there is no folder to save in; give save_folder, too$", lambda: trainer(save_every=5))
    refused(r"^validate_every 0: must be mini-batches, as 500, or epochs", lambda: trainer(validate_every=0))
    refused("^keep_best f1: must be loss, accuracy or none$", lambda: trainer(keep_best="f1"))
    refused("^min_delta -1.0: must be at least 0 and finite$", lambda: trainer(min_delta=-1.0))
    refused("^early_stopping 3: needs validation$", lambda: trainer(early_stopping=3).fit(inputs, targets))
    refused("^keep_best loss: needs save_folder", lambda: trainer(keep_best="loss").fit(inputs, targets, validation=0.5))
    refused("^validation 1.5: must be above 0 and below 1$", lambda: trainer().fit(inputs, targets, validation=1.5))
    refused(r"^validation: must be \(inputs, targets\), or a share", lambda: trainer().fit(inputs, targets, validation=inputs))
    refused("^save\\(\\) has no folder; make the trainer with save_folder=", lambda: trainer().save())
    refused("sequential", lambda: trainer(executor="threads"))
    refused("targets has 12 rows where others have 13", lambda: trainer().step(inputs, targets[:12]))
    refused("weight", lambda: trainer().step(inputs, targets, weight=5))
    refused("complex128", lambda: trainer().step(inputs.astype(complex), targets), millrace.StepError)
    other = model(2)
    exchanged = trainer(*other)
    other[0].parameters[other[0].name] = other[0].parameters[other[0].name].copy()
    refused("is another array than at the start", lambda: exchanged.step(inputs, targets))


class Sixty(Multiply):
    def __init__(self, number):
        super().__init__(number)
        self.parameters = {self.name: self.parameters[self.name].astype(np.float64)}


def resident_mib():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_steps_and_failed_steps_hold_on_to_no_memory():
    inputs, targets = data(256)
    inputs, targets = np.repeat(inputs, 20, axis=0), np.repeat(targets, 20, axis=0)
    stages = [Multiply(0), Fails(1, last=True)]
    trainer = millrace.Trainer(millrace.generate("zb-h1", 2, 8), stages)

    def some(count):
        for step in range(count):
            stages[1].where = "backward_input" if step % 3 == 2 else None
            try:
                trainer.step(inputs, targets)
            except millrace.StepError:
                pass

    some(30)
    gc.collect()
    before = resident_mib()
    some(300)
    gc.collect()
    assert resident_mib() - before < 8


def test_nothing_of_a_unit_outlives_its_step():
    seen = []

    class Watched(Fails):
        def forward(self, unit, x):
            y = super().forward(unit, x)
            seen.extend(weakref.ref(thing) for thing in (unit, x, y))
            return y

    stages = [Watched(0), Watched(1, last=True)]
    for options in ({}, {"recompute": True}, {"executor": "flow-graph"}):
        trainer = millrace.Trainer(millrace.generate("zb-h1", 2, 4), stages, **options)
        for where in (None, "forward", "backward_input", "backward_weight"):
            stages[1].where = where
            try:
                trainer.step(*data())
            except millrace.StepError:
                pass
            gc.collect()
            assert seen and not any(reference() is not None for reference in seen), (options, where)
            seen.clear()


def test_a_trainer_ends_with_its_program():
    script = ("import sys; sys.path.insert(0, sys.argv[1])\n"
              "import test_training as t, millrace\n"
              "trainer = millrace.Trainer(millrace.generate('1f1b', 2, 4), t.model(2), executor='flow-graph')\n"
              "print(trainer.step(*t.data()).global_step)\n")
    ran = subprocess.run([sys.executable, "-c", script, str(pathlib.Path(__file__).parent)],
                         capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("1\n", "", 0)
