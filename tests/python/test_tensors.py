# Stages over tensors of other libraries, by DLPack, and over slices of sequences; and fit, over arrays.
import ctypes
import gc
import signal
import weakref

import numpy as np
import pytest

import millrace


class DLTensor(ctypes.Structure):
    """DLPack's structures, written once more: numpy reads no bf16 and writes into nothing that it was given."""

    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("offset", ctypes.c_uint64)]


class DLManagedTensor(ctypes.Structure):
    pass


Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(DLManagedTensor))
DLManagedTensor._fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]

api = ctypes.pythonapi
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Bf16:
    """A tensor of bf16 that was made elsewhere: numbers as float32, their upper halves as its memory."""

    alive = []

    def __init__(self, values, strides=None, device=1):
        self.halves = (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        self.shape, self.strides, self.device = np.shape(values), strides, device

    def __dlpack__(self):
        def end(_):
            Bf16.alive.remove(held)

        numbers = ctypes.c_int64 * len(self.shape)
        managed = DLManagedTensor()
        shape, strides = numbers(*self.shape), self.strides and numbers(*self.strides)
        held = (managed, shape, strides, self.halves, Deleter(end))
        managed.deleter = held[-1]
        managed.tensor = DLTensor(self.halves.ctypes.data, (self.device, 0), len(self.shape), 4, 16, 1, shape, strides, 0)
        Bf16.alive.append(held)
        return api.PyCapsule_New(ctypes.addressof(managed), b"dltensor", None)


def numbers_of(tensor):
    """The memory of a millrace.Tensor of bf16, as float32; and its address."""
    capsule = tensor.__dlpack__()
    given = DLManagedTensor.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor")).tensor
    assert (given.code, given.bits, given.lanes, tuple(given.device)) == (4, 16, 1, (1, 0))
    assert tensor.dtype == "bf16" and tuple(given.shape[: given.ndim]) == tensor.shape
    count = int(np.prod(tensor.shape))
    halves = np.ctypeslib.as_array((ctypes.c_uint16 * count).from_address(given.data or 0)) if count else np.zeros(0)
    return (halves.astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape), given.data


class Rounds:
    """The first stage: hands on its inputs as bf16."""

    def __init__(self, strides=False):
        self.strided, self.seen = strides, []

    def forward(self, unit, x):
        if not self.strided:
            return Bf16(x)
        turned = Bf16(x.T)
        turned.shape, turned.strides = x.shape, (1, len(x))
        return turned

    def backward(self, unit, gradient):
        assert gradient.dtype == np.float32
        self.seen.append(gradient.copy())


class Sums(millrace.Stage):
    """The last stage: the loss is w times the sum of what comes, in bf16 by DLPack."""

    tensors = "dlpack"

    def __init__(self):
        self.parameters, self.places = {"w": np.ones(1, np.float32)}, []

    def forward(self, unit, x):
        values, place = numbers_of(x)
        self.places.append(place)
        unit.kept = values.copy()
        if unit.targets is not None:
            (target,) = unit.targets
            assert target.dtype == "f32"
            unit.add_loss(float(self.parameters["w"][0]) * float(values.sum()) + 0 * np.from_dlpack(target).sum(), len(values))
        return np.float32(values)

    def backward(self, unit):
        self.gradients["w"] += np.float32(unit.loss_scale) * unit.kept.sum()
        return np.full_like(unit.kept, self.parameters["w"][0])


@pytest.mark.parametrize("strides", [False, True])
@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_bf16_goes_from_stage_to_stage_by_dlpack(name, strides):
    x = np.arange(18, dtype=np.float32).reshape(6, 3)  # exact in bf16
    first, last = Rounds(strides), Sums()
    trainer = millrace.Trainer(millrace.generate(name, 2, 3), [first, last], optimizer=millrace.Sgd(0.125))
    report = trainer.step(x, np.zeros((6, 1), np.float32))
    assert report.loss_sum == x.sum()
    assert last.parameters["w"][0] == 1 - 0.125 * x.sum() / 6
    assert len(first.seen) == 3 and all((gradient == 1).all() for gradient in first.seen)
    assert trainer.predict(x).tolist() == x.tolist()
    gc.collect()
    assert Bf16.alive == []


def test_memory_is_handed_over_and_not_copied():
    made = []

    class Hands(Rounds):
        def forward(self, unit, x):
            made.append(Bf16(x))
            return made[-1]

    last = Sums()
    trainer = millrace.Trainer(millrace.generate("gpipe", 2, 2), [Hands(), last])
    trainer.step(np.ones((4, 2), np.float32), np.zeros((4, 1), np.float32))
    assert sorted(tensor.halves.ctypes.data for tensor in made) == sorted(last.places)


def test_a_tensor_of_ours_lives_as_long_as_who_took_it():
    kept = []

    class Keeps(Sums):
        def forward(self, unit, x):
            kept.append(np.from_dlpack(x))
            return super().forward(unit, Bf16OfOurs(x))

    class Bf16OfOurs:
        def __init__(self, x):
            self.shape, self.dtype = x.shape, "bf16"
            self.inner = Bf16(np.from_dlpack(x))

        def __dlpack__(self):
            return self.inner.__dlpack__()

    class First(Rounds):
        def forward(self, unit, x):
            return np.square(x)

    trainer = millrace.Trainer(millrace.generate("1f1b", 2, 2), [First(), Keeps()])
    trainer.step(np.full((4, 2), 3, np.float32), np.zeros((4, 1), np.float32))
    del trainer
    gc.collect()
    assert [array.tolist() for array in kept] == [[[9, 9], [9, 9]]] * 2
    Bf16.alive.clear()


def test_what_autograd_watches_is_detached():
    class Watched(Bf16):
        requires_grad = True
        detached = 0

        def detach(self):
            Watched.detached += 1
            return Bf16((self.halves.astype(np.uint32) << 16).view(np.float32))

        def __dlpack__(self):
            raise RuntimeError("this one requires a gradient")

    class First(Rounds):
        def forward(self, unit, x):
            return Watched(x)

    trainer = millrace.Trainer(millrace.generate("1f1b", 2, 2), [First(), Sums()])
    assert trainer.step(np.ones((4, 2), np.float32), np.zeros((4, 1), np.float32)).loss_sum == 8
    assert Watched.detached == 2


@pytest.mark.parametrize("sentence, stages", [
    ("of bf16, which numpy does not have; a stage with tensors = \"dlpack\" takes it", lambda: [Rounds(), Plain()]),
    ("forward has a tensor of another device than the CPU", lambda: [Elsewhere(), Sums()]),
    ("forward has a tensor of 64 bits and DLPack's kind 5", lambda: [Complex(), Sums()]),
    ("forward returned a str; expected arrays of numpy or tensors with __dlpack__", lambda: [Text(), Sums()]),
])
def test_what_is_no_tensor_for_us_is_refused(sentence, stages):
    trainer = millrace.Trainer(millrace.generate("1f1b", 2, 2), stages())
    with pytest.raises(millrace.StepError) as refused:
        trainer.step(np.ones((4, 2), np.float32), np.zeros((4, 1), np.float32))
    assert sentence in str(refused.value)
    gc.collect()
    assert Bf16.alive == []


def test_a_stage_asks_for_tensors_of_a_known_kind():
    class Odd(Sums):
        tensors = "jax"

    with pytest.raises(millrace.InvalidArgument, match="^tensors is 'jax'; known are numpy and dlpack$"):
        millrace.Trainer(millrace.generate("1f1b", 1, 2), [Odd()])


class Plain(Sums):
    tensors = "numpy"


class Elsewhere(Rounds):
    def forward(self, unit, x):
        return Bf16(x, device=2)


class Text(Rounds):
    def forward(self, unit, x):
        return "x"


class Complex(Rounds):
    def forward(self, unit, x):
        class Number:
            def __dlpack__(self):
                return x.astype(np.complex64).__dlpack__()

        return Number()


class Running(millrace.Stage):
    """y = w (x0 + x1 + ... + xi) at every position i: a slice needs the sum of those before it. The last one has y^2 / 2 as
    its loss."""

    def __init__(self, number, last=False):
        self.name, self.last, self.sums, self.later = f"layers.{number}.weight", last, {}, {}
        self.parameters = {self.name: np.float32([0.5 + number / 8])}

    def forward(self, unit, x):
        before = self.sums.get(unit.micro_batch, 0) if unit.slice > 0 else 0
        summed = np.cumsum(x, axis=1, dtype=np.float32) + before
        self.sums[unit.micro_batch] = summed[:, -1:]
        unit.kept = [summed]
        y = self.parameters[self.name] * summed
        if self.last and unit.targets is not None:
            assert unit.targets[0].shape == x.shape
            unit.kept.append(y - unit.targets[0])
            unit.add_loss(0.5 * float(np.square(unit.kept[1]).sum()), x.size)
        return y

    def backward_input(self, unit, *gradients):
        gradient = gradients[0] if gradients else unit.kept[1] * np.float32(unit.loss_scale)
        later = self.later.pop(unit.micro_batch, 0)
        unit.kept = [unit.kept[0], gradient]
        given = np.cumsum((self.parameters[self.name] * gradient)[:, ::-1], axis=1, dtype=np.float32)[:, ::-1] + later
        if unit.slice > 0:
            self.later[unit.micro_batch] = given[:, :1]
        return given

    def backward_weight(self, unit):
        summed, gradient = unit.kept
        self.gradients[self.name] += np.sum(summed * gradient, dtype=np.float32)


def sequences():
    generator = np.random.default_rng(4)
    return (generator.integers(-2, 3, (6, 7)).astype(np.float32), generator.integers(-2, 3, (6, 7)).astype(np.float32))


def test_slices_of_sequences_give_what_whole_sequences_give():
    x, t = sequences()
    found = []
    for name, slices in (("1f1b", 1), ("seq-1f1b", 2), ("seq-1f1b", 3)):
        program = millrace.generate(name, 2, 4, slices=None if slices == 1 else slices)
        trainer = millrace.Trainer(program, [Running(0), Running(1, last=True)], optimizer=millrace.Sgd(2**-10))
        assert program.shape.slices == slices
        losses = [trainer.step(x, t, weight=x.size).mean_loss for _ in range(3)]
        found.append((losses, trainer.predict(x), trainer.evaluate(x, t).loss_sum))
    for losses, predicted, score in found[1:]:
        np.testing.assert_allclose(losses, found[0][0], rtol=1e-5)
        np.testing.assert_allclose(predicted, found[0][1], rtol=1e-5, atol=1e-5)
        assert score == pytest.approx(found[0][2], rel=1e-5)


def test_a_unit_knows_its_slice():
    seen = set()

    class Looks(Running):
        def forward(self, unit, x):
            seen.add((unit.micro_batch, unit.slice, unit.slices, unit.first_sample, unit.first_position, x.shape))
            return super().forward(unit, x)

    trainer = millrace.Trainer(millrace.generate("seq-1f1b", 2, 4, slices=3), [Looks(0), Running(1, last=True)])
    trainer.step(*sequences(), weight=42)
    assert seen == {(m, s, 3, first, (0, 3, 5)[s], (rows, (3, 2, 2)[s]))
                    for m, (first, rows) in enumerate([(0, 2), (2, 2), (4, 1), (5, 1)]) for s in range(3)}


def test_arrays_that_cannot_be_cut_into_slices_are_refused():
    trainer = millrace.Trainer(millrace.generate("seq-1f1b", 2, 4, slices=3), [Running(0), Running(1, last=True)])
    x, t = sequences()
    for inputs, targets, sentence in ((x, t[:, 0], "every array is \\[samples, positions, ...\\]"),
                                      (x, t[:, :5], "of one number of positions; got one of \\(6, 5\\)"),
                                      (x[:, :2], t[:, :2], "sequences of 2 positions cannot be cut into 3 slices")):
        with pytest.raises(millrace.InvalidArgument, match=sentence):
            trainer.step(inputs, targets)


class Line(millrace.Stage):
    """y = w x with half the squared distance as its loss; remembers the rows that it was given."""

    def __init__(self):
        self.parameters, self.rows = {"w": np.zeros((3, 2), np.float32)}, []

    def forward(self, unit, x):
        unit.kept = [x]
        if unit.training:
            self.rows.append(x)
        y = x @ self.parameters["w"]
        if unit.targets is not None:
            unit.kept.append(y - unit.targets[0])
            unit.add_loss(0.5 * float(np.square(unit.kept[1]).sum()), len(x))
        return y

    def backward(self, unit):
        x, error = unit.kept
        self.gradients["w"] += x.T @ (error * np.float32(unit.loss_scale))


def line_data():
    x = np.random.default_rng(0).normal(0, 1, (50, 3)).astype(np.float32)
    return x, x @ np.float32([[1, 2], [3, 4], [5, 6]])


def fitted(**options):
    stage = Line()
    trainer = millrace.Trainer(millrace.generate("1f1b", 1, 2), [stage], optimizer=millrace.AdamW(0.1, weight_decay=0),
                               batch_size=16, **options)
    return stage, trainer


def test_fit_trains_for_epochs_over_shuffled_arrays():
    x, t = line_data()
    stage, trainer = fitted(epochs=40, learning_rate="cosine")
    steps, epochs = [], []
    report = trainer.fit(x, t, on_step=steps.append, on_epoch=epochs.append)
    assert len(report.epochs) == 40 and tuple(epochs) == report.epochs and report.samples == 40 * 50
    assert [epoch.updates for epoch in epochs] == [4] * 40 and trainer.global_step == len(steps) == 160
    assert report.epochs[-1].mean_loss < report.epochs[0].mean_loss / 50
    assert steps[-1].learning_rate < steps[0].learning_rate / 100  # the curve ends with the fit
    first = np.concatenate(stage.rows[:8])
    assert not (first == x).all()
    assert sorted(map(bytes, first)) == sorted(map(bytes, x))  # and what a stage kept is still what it was given


def test_fit_by_steps_saves_and_goes_on_with_the_same_bits(tmp_path):
    x, t = line_data()
    _, whole = fitted(steps=7)
    whole.fit(x, t)
    _, begun = fitted(steps=5, save_folder=str(tmp_path), save_every=3)
    begun.fit(x, t)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["step-0000000003", "step-0000000005"]
    _, resumed = fitted(steps=7)
    resumed.resume(tmp_path)
    resumed.fit(x, t)
    assert resumed.weights_hash() == whole.weights_hash() and resumed.global_step == 7


def test_what_a_listener_of_fit_raises_comes_out():
    x, t = line_data()
    stage, trainer = fitted()
    held = []

    def fails(report):
        held.append(weakref.ref(report))
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        trainer.fit(x, t, on_step=fails)
    assert trainer.global_step == 1
    trainer.step(x, t)
    gc.collect()
    assert held[0]() is None


@pytest.mark.parametrize("executor", ["sequential", "flow-graph", "ranks"])
def test_signals_reach_python_during_a_fit(executor):
    ticks, blocked = [], set()

    class Watched(Line):
        def forward(self, unit, x):
            blocked.update(signal.pthread_sigmask(signal.SIG_BLOCK, []))
            return super().forward(unit, x)

    def trained(steps):
        trainer = millrace.Trainer(millrace.generate("1f1b", 1, 2), [Watched()], executor=executor, steps=steps)
        trainer.fit(*line_data(), on_step=lambda report: enough(trainer))
        return trainer.weights_hash()

    def enough(trainer):
        if interrupted and trainer.global_step == 20:
            while len(ticks) < 3:
                pass

    interrupted = False
    quiet = trained(40)
    interrupted = True
    before = signal.signal(signal.SIGALRM, lambda number, frame: ticks.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        assert trained(40) == quiet
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(ticks) >= 3 and not blocked


@pytest.mark.parametrize("executor", ["sequential", "flow-graph"])
def test_ctrl_c_ends_a_fit(executor):
    class Interrupted(Line):
        def forward(self, unit, x):
            if unit.step == 3:
                signal.raise_signal(signal.SIGINT)
            return super().forward(unit, x)

    trainer = millrace.Trainer(millrace.generate("1f1b", 1, 2), [Interrupted()], executor=executor, epochs=10**6)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(*line_data())
    assert trainer.global_step <= 4
