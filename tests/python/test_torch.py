# Modules of PyTorch in Python: the bits of a plain loop by every schedule, and tracebacks that say where.
import gc
import os
import re
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn
from torch_models import next_word_loss, same_bits, sentences, small_gpt, train_plainly, words_of

import millrace
import millrace.torch

RATE = millrace.AdamW(1e-2)


def pipeline(model, **options):
    options = {"loss": next_word_loss, "loss_weight": words_of, "ranks": 2, "micro_batches": 4, "optimizer": RATE} | options
    return millrace.torch.Pipeline(model, **options)


def plain_gpt(precision, steps=5):
    model, (inputs, targets) = small_gpt(), sentences()
    losses = train_plainly(model, next_word_loss, inputs, targets, micro_batches=4, steps=steps, optimizer=RATE,
                           weight=targets.numel(), precision=precision)
    return model, losses


@pytest.fixture(scope="module")
def plain():
    return {precision: plain_gpt(precision) for precision in ("f32", "bf16")}


# Every pair of a schedule with one of the other three settings, and these with each other.
CASES = [
    ("1f1b", False, "f32", "sequential"),
    ("1f1b", True, "bf16", "ranks"),
    ("gpipe", True, "f32", "flow-graph"),
    ("gpipe", False, "bf16", "sequential"),
    ("zb-h1", False, "f32", "sequential"),
    ("zb-h1", True, "bf16", "flow-graph"),
    ("zb-h1", True, "f32", "ranks"),
    ("interleaved", True, "f32", "sequential"),
    ("interleaved", False, "bf16", "ranks"),
    ("zb-v", False, "bf16", "flow-graph"),
    ("zb-v", True, "f32", "sequential"),
    ("zb-v", False, "f32", "ranks"),
]


@pytest.mark.parametrize("schedule,recompute,precision,executor", CASES)
def test_every_schedule_gives_the_bits_of_a_plain_loop(plain, schedule, recompute, precision, executor):
    model, (inputs, targets) = small_gpt(), sentences()
    trained = pipeline(model, schedule=schedule, recompute=recompute, precision=precision, executor=executor)
    assert trained.program.accumulation().ascending
    losses = [trained.step(inputs, targets).mean_loss for _ in range(5)]
    theirs, their_losses = plain[precision]
    assert losses == their_losses
    assert same_bits(model, theirs) == []


def test_the_updates_of_pytorch_are_those_of_millrace():
    model, twin, (inputs, targets) = small_gpt(), small_gpt(), sentences(12)
    trained = pipeline(model, schedule="zb-h1", optimizer=millrace.Sgd(2.0**-3))
    descent = torch.optim.SGD(twin.parameters(), lr=2.0**-3)
    for _ in range(5):
        trained.step(inputs, targets)
        descent.zero_grad()
        for x, wanted in zip(inputs.tensor_split(4), targets.tensor_split(4)):
            total, _ = next_word_loss(twin(x), wanted)
            total.backward(torch.tensor(1.0 / targets.numel()))
        descent.step()
    assert same_bits(model, twin) == []


def test_a_list_of_modules_is_a_stage_each_and_tuples_go_between_them():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(5, 5), nn.Linear(5, 5)

        def forward(self, x, number=None):
            return torch.tanh(self.one(x)), self.other(x), torch.arange(len(x))

    class Ends(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(5, 2)

        def forward(self, one, other, numbers):
            assert numbers.dtype == torch.int64
            return self.last(one * other)

    torch.manual_seed(3)
    twins = [nn.ModuleList([Both(), Ends()])]
    twins.append(nn.ModuleList([Both(), Ends()]))
    twins[1].load_state_dict(twins[0].state_dict())
    x, wanted = torch.randn(8, 5), torch.randn(8, 2)

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = twins[1]

        def forward(self, x):
            return self.parts[1](*self.parts[0](x))

    loss = nn.MSELoss()
    trained = millrace.torch.Pipeline(list(twins[0]), loss=loss, ranks=2, micro_batches=4, schedule="zb-h1", optimizer=RATE)
    for _ in range(3):
        trained.step(x, wanted)
    summed = nn.MSELoss(reduction="sum")
    train_plainly(Whole(), summed, x, wanted, micro_batches=4, steps=3, optimizer=RATE, weight=wanted.numel())
    assert same_bits(*twins) == []
    assert loss.reduction == "mean"
    nn.ModuleList([Both(), Ends()]).load_state_dict(trained.state_dict())


class Two(nn.Module):
    def forward(self, x):
        return x, torch.sin(x)


class Product(nn.Module):
    def forward(self, both):
        return both[0] * both[1]


def test_a_tuple_is_one_value_in_a_sequential():
    def made():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(5, 5), Two(), Product(), nn.Linear(5, 2))

    (x, wanted), model, twin = (torch.randn(8, 5), torch.randn(8, 2)), made(), made()
    trained = pipeline(model, schedule="zb-h1", cut=[0, 2, 4], loss=nn.MSELoss(), loss_weight=None)
    trained.step(x, wanted)
    train_plainly(twin, nn.MSELoss(reduction="sum"), x, wanted, micro_batches=4, steps=1, optimizer=RATE, weight=16)
    assert same_bits(model, twin) == []


class Scaled(torch.autograd.Function):
    """x w, its backward written by hand."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.t(), x.t() @ gradient


class Own(nn.Module):
    """A function of autograd, and as many turns as the data say."""

    def __init__(self, function):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(5, 5) / 3), function

    def forward(self, x):
        for _ in range(1 + int(x.sum() > 0)):
            x = torch.tanh(self.function(x, self.weight))
        return x if x[0, 0] > 0 else 2 * x


@pytest.mark.parametrize("executor", ["sequential", "flow-graph", "ranks"])
@pytest.mark.parametrize("options", [{}, {"recompute": True}], ids=str)
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_functions_of_autograd_and_control_flow_work(schedule, options, executor):
    def made(function):
        torch.manual_seed(5)
        return nn.Sequential(*[Own(function) for _ in range(4)])

    model, twin = made(Scaled.apply), made(torch.matmul)
    x, wanted = torch.randn(12, 5), torch.randn(12, 5)
    trained = pipeline(model, schedule=schedule, loss=nn.MSELoss(), loss_weight=None, executor=executor, **options)
    for _ in range(3):
        trained.step(x, wanted)
    train_plainly(twin, nn.MSELoss(reduction="sum"), x, wanted, micro_batches=4, steps=3, optimizer=RATE, weight=60)
    assert same_bits(model, twin) == []


def test_hooks_are_called_once_a_unit():
    model, (inputs, targets), calls = small_gpt(), sentences(), []
    model[0].words.weight.register_hook(lambda gradient: calls.append("parameter"))
    model[5].register_forward_hook(lambda module, given, output: calls.append("module"))
    pipeline(model, schedule="zb-h1").step(inputs, targets)
    assert sorted(calls) == ["module"] * 4 + ["parameter"] * 4


class Fails(nn.Module):
    where = None

    def __init__(self):
        super().__init__()
        self.calls = 0

    def broken(self, here):
        self.calls += self.where == here
        if self.where == here and self.calls == 3:
            raise ZeroDivisionError("no luck in " + here)

    def forward(self, x):
        self.broken("forward")
        outer = self

        class Breaks(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                outer.broken("backward")
                return gradient

        y = Breaks.apply(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: self.broken("hook"))
        return y


@pytest.mark.parametrize("executor", ["sequential", "flow-graph", "ranks"])
@pytest.mark.parametrize("where", ["forward", "backward", "hook", "loss", "parameter hook"])
def test_a_traceback_is_told_and_the_next_step_works(where, executor):
    fails = Fails()
    model, twin, (inputs, targets) = small_gpt(4), small_gpt(4), sentences()
    model.insert(5, fails)
    parameter = model[-1].weight
    parameter.register_hook(lambda gradient: fails.broken("parameter hook"))

    def loss(outputs, targets):
        if outputs.requires_grad:  # not of the halves by which a mean is noticed
            fails.broken("loss")
        return next_word_loss(outputs, targets)

    trained = pipeline(model, schedule="zb-h1", loss=loss, executor=executor)
    fails.where = where
    with pytest.raises(millrace.StepError) as failed:
        trained.step(inputs, targets)
    sentence = str(failed.value)
    assert f"no luck in {where}" in sentence and 'test_torch.py", line' in sentence and "in broken" in sentence
    assert "rank 1" in sentence and "stage 1" in sentence and "micro-batch 2" in sentence
    assert failed.value.rank == 1 and failed.value.action[0] == "1" and failed.value.action[-1] == "2"
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    fails.where = None
    trained.step(inputs, targets)
    train_plainly(twin, next_word_loss, inputs, targets, micro_batches=4, steps=1, optimizer=RATE, weight=targets.numel())
    assert [value.tolist() for value in model.parameters()] == [value.tolist() for value in twin.parameters()]


def test_what_pytorch_throws_is_told_in_one_line():
    trained = pipeline(nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2)), loss=nn.MSELoss(), loss_weight=None)
    with pytest.raises(millrace.StepError, match="rank 1(.|\n)*mat1 and mat2 shapes cannot be multiplied") as failed:
        trained.step(torch.zeros(4, 3), torch.zeros(4, 2))
    assert "frame #" not in str(failed.value)


def test_losses_with_a_mean_are_taken_exactly():
    torch.manual_seed(1)
    outputs = torch.randn(8, 11)
    labels = torch.tensor([1, 2, -100, 3, 4, -100, 5, 6])
    for loss, wanted, rate in ((nn.CrossEntropyLoss(), labels, 6), (nn.MSELoss(), torch.randn(8, 11), 88),
                               (nn.CrossEntropyLoss(label_smoothing=0.1), labels, 6), (nn.SmoothL1Loss(), torch.randn(8, 11), 88)):
        model = nn.Sequential(nn.Linear(11, 11), nn.Linear(11, 11))
        mean = loss(model(outputs), wanted)
        mean.backward()
        gradient = model[0].weight.grad.clone()
        before = model[0].weight.detach().clone()
        trained = pipeline(model, loss=loss, loss_weight=None, optimizer=millrace.Sgd(1.0))
        assert trained.evaluate(outputs, wanted).mean_loss == pytest.approx(mean.item(), rel=1e-6)
        report = trained.step(outputs, wanted)
        assert report.mean_loss == pytest.approx(mean.item(), rel=1e-6) and report.loss_weight == rate
        torch.testing.assert_close(before - model[0].weight.detach(), gradient, rtol=1e-4, atol=1e-6)


def test_evaluation_counts_right_answers_and_leaves_modes_alone():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.5), nn.BatchNorm1d(7), nn.Linear(7, 3))
    model[2].eval()
    x, labels = torch.randn(12, 5), torch.arange(12) % 3
    trained = pipeline(model, loss=nn.CrossEntropyLoss(), loss_weight=None)
    score = trained.evaluate(x, labels)
    assert [module.training for module in model] == [True, True, False, True]
    model.eval()
    right = (model(x).argmax(1) == labels).float().mean().item()
    assert score.accuracy == pytest.approx(right) and score.samples == 12
    torch.testing.assert_close(trained.predict(x), model(x).detach())
    assert pipeline(small_gpt(), precision="bf16").predict(sentences()[0]).dtype == torch.float32


def test_dropout_of_pytorch_does_not_depend_on_the_schedule_and_leaves_the_generator_alone():
    hashes, drawn = set(), set()
    for schedule, options in (("1f1b", {}), ("zb-h1", {"recompute": True}), ("gpipe", {})):
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.25))
        trained = pipeline(model, schedule=schedule, loss=nn.MSELoss(), loss_weight=None, **options)
        x, wanted = torch.randn(12, 5), torch.randn(12, 8)
        for _ in range(3):
            trained.step(x, wanted)
        hashes.add(trained.weights_hash())
        drawn.add(torch.rand(1).item())
    assert len(hashes) == 1 and len(drawn) == 1
    with pytest.raises(millrace.StepError, match="one generator for all ranks"):
        pipeline(model, loss=nn.MSELoss(), loss_weight=None, executor="ranks").step(x, wanted)


def test_our_dropout_does_not_depend_on_the_cut_either():
    def made():
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(5, 8), millrace.torch.Dropout(0.5, layer=1), nn.Linear(8, 8), nn.Linear(8, 8))

    x, wanted = torch.randn(12, 5), torch.randn(12, 8)
    hashes = set()
    for cut, executor in (([0, 1, 4], "sequential"), ([0, 3, 4], "ranks"), ("parameters", "flow-graph")):
        trained = pipeline(made(), cut=cut, executor=executor, loss=nn.MSELoss(), loss_weight=None)
        trained.step(x, wanted)
        hashes.add(trained.weights_hash())
    assert len(hashes) == 1


def test_a_schedule_with_copies_trains_and_takes_new_weights_everywhere():
    program = millrace.generate("chimera", 2, 4)
    assert program.shape.replicas == 2
    model, (inputs, targets) = small_gpt(), sentences(12)
    trained = pipeline(model, schedule=program)
    first = trained.step(inputs, targets).mean_loss
    trained.load_state_dict(small_gpt().state_dict())
    assert trained.step(inputs, targets).mean_loss == first
    assert trained.step(inputs, targets).mean_loss < first


def test_a_weight_of_two_stages_is_tied():
    class Head(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = weight

        def forward(self, x):
            return nn.functional.linear(x, self.weight)

    def made():
        model = small_gpt()
        model[-1] = Head(model[0].words.weight)
        return model

    inputs, targets = sentences(3)
    with pytest.raises(millrace.InvalidArgument, match="share the tensor 'layers.0.words.weight' .'layers.7.weight'.; tie=True"):
        pipeline(made(), micro_batches=1)
    model, plain = made(), made()
    trained = pipeline(model, micro_batches=1, tie=True)
    for _ in range(3):
        trained.step(inputs, targets)
    train_plainly(plain, next_word_loss, inputs, targets, micro_batches=1, steps=3, optimizer=RATE, weight=targets.numel())
    assert model[0].words.weight is not model[-1].weight and torch.equal(model[0].words.weight, model[-1].weight)
    assert same_bits(model, plain) == []
    hashes = set()
    for schedule in ("1f1b", "zb-v"):
        trained = pipeline(made(), schedule=schedule, tie=True)
        trained.step(*sentences())
        hashes.add(trained.weights_hash())
    assert len(hashes) == 1


def test_a_checkpoint_goes_on_with_the_same_bits(tmp_path):
    inputs, targets = sentences()
    whole = pipeline(small_gpt(), save_folder=str(tmp_path))
    whole.step(inputs, targets)
    folder = whole.save()
    whole.step(inputs, targets)
    resumed = pipeline(small_gpt(), schedule="zb-v", cut="parameters")
    assert resumed.resume(tmp_path) == folder
    resumed.step(inputs, targets)
    assert resumed.weights_hash() == whole.weights_hash() and resumed.global_step == 2
    plain = small_gpt()
    plain.load_state_dict(resumed.state_dict())
    assert same_bits(plain, whole.model) == []


def test_fit_takes_tensors_datasets_and_loaders():
    inputs, targets = sentences(32)
    hashes = []
    for data in ((inputs, targets), torch.utils.data.TensorDataset(inputs, targets)):
        trained = pipeline(small_gpt())
        seen = []
        losses = trained.fit(data, epochs=3, batch_size=12, on_step=seen.append)
        assert len(losses) == 3 and losses[2] < losses[0] and [report.samples for report in seen] == [12, 12, 8] * 3
        hashes.append(trained.weights_hash())
    assert hashes[0] == hashes[1]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=8)
    trained = pipeline(small_gpt())
    assert len(trained.fit(loader, epochs=2)) == 2 and trained.global_step == 8


@pytest.mark.parametrize("updates", [1, 3, 5])
def test_fit_goes_on_where_a_checkpoint_was_saved(tmp_path, updates):
    data = sentences(32)  # 3 mini-batches an epoch
    whole = pipeline(small_gpt())
    losses = whole.fit(data, epochs=3, batch_size=12)
    saved = pipeline(small_gpt(), save_folder=str(tmp_path))
    saved.fit(data, epochs=3, batch_size=12,
              on_step=lambda report: saved.save() if report.global_step == updates else None)
    resumed = pipeline(small_gpt())
    resumed.resume(tmp_path)
    again = resumed.fit(data, epochs=3, batch_size=12)
    assert resumed.weights_hash() == whole.weights_hash() and resumed.global_step == 9
    assert again[-1] == losses[-1] and len(again) == 3 - updates // 3
    resumed.fit(data, epochs=1, batch_size=12)  # a fit of its own
    assert resumed.global_step == 12


def test_what_does_not_fit_is_refused():
    inputs, targets = sentences()

    def refused(sentence, call, kind=millrace.InvalidArgument):
        with pytest.raises(kind, match=sentence):
            call()

    refused("model is a Linear; a pipeline takes an nn.Sequential", lambda: pipeline(nn.Linear(2, 2)))
    refused("a list of 1 modules, the schedule has 2", lambda: pipeline([nn.Linear(2, 2)]))
    refused("1 layers|more stages than layers|1 layer", lambda: pipeline(nn.Sequential(nn.Linear(2, 2))))
    refused("2 slices per micro-batch", lambda: pipeline(small_gpt(), schedule="seq-1f1b"))
    refused("cut is 'odd'", lambda: pipeline(small_gpt(), cut="odd"))
    refused("4 boundaries cut a model into 3 stages, the schedule has 2", lambda: pipeline(small_gpt(), cut=[0, 1, 2, 8]))
    refused("precision is 'f16'", lambda: pipeline(small_gpt(), precision="f16"))
    refused("'layers.1.weight' must be f32", lambda: pipeline(nn.Sequential(nn.ReLU(), nn.Linear(2, 2).double())))
    shared = nn.Linear(2, 2)
    refused("stages 0 and 1 share the tensor 'layers.0.weight'", lambda: pipeline(nn.Sequential(shared, shared)))
    refused("share the module of 'layers.1.weight'", lambda: pipeline(nn.Sequential(shared, shared), tie=True))
    twice = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), shared, shared)
    assert pipeline(twice, loss=nn.MSELoss(), loss_weight=None).predict(torch.zeros(4, 2)).shape == (4, 2)
    refused("it cannot be called", lambda: pipeline(small_gpt(), loss=3))
    for loss in (nn.CrossEntropyLoss(weight=torch.ones(3)), nn.KLDivLoss()):
        refused("give reduction='sum' and loss_weight", lambda: pipeline(small_gpt(), loss=loss, loss_weight=None))
    refused("reduction='none'", lambda: pipeline(small_gpt(), loss=nn.MSELoss(reduction="none")))
    refused("weigh", lambda: pipeline(small_gpt(), loss_weight=None).step(inputs, targets))
    refused("torch.bool", lambda: pipeline(small_gpt()).step(inputs > 0, targets))
    refused("gave a dict; a stage gives", lambda: pipeline([Gives(), Gives()]).step(inputs, targets), millrace.StepError)
    refused("a loss gives its sum", lambda: pipeline(small_gpt(), loss=lambda *_: 3.0).step(inputs, targets), millrace.StepError)
    exchanged = pipeline(small_gpt())
    exchanged.model[1].mix.weight = nn.Parameter(exchanged.model[1].mix.weight.detach().clone())
    refused("'layers.1.mix.weight' is another tensor", lambda: exchanged.step(inputs, targets))
    moved = pipeline(small_gpt())
    moved.model.zero_grad(set_to_none=True)
    refused("no longer in the memory", lambda: moved.step(inputs, targets), millrace.StepError)


class Gives(nn.Module):
    def forward(self, x):
        return {"x": x}


def test_no_tensor_outlives_a_step_that_fails():
    fails, (inputs, targets), seen = Fails(), sentences(), []
    model = small_gpt(4)
    model.insert(5, fails)
    for module in model:
        module.register_forward_hook(lambda module, given, output: seen.append(weakref.ref(output)))
    trained = pipeline(model, schedule="zb-h1")
    for round in range(int(os.environ.get("MILLRACE_ROUNDS", "16"))):
        fails.where, fails.calls = (None, "forward", "backward", "hook")[round % 4], 0
        try:
            trained.step(inputs, targets)
        except millrace.StepError:
            pass
        gc.collect()
        assert seen and not any(reference() is not None for reference in seen)
        seen.clear()


@pytest.mark.parametrize("missing,sentence", [("torch", "needs PyTorch .Debian: python3-torch."),
                                              ("millrace._millrace_torch", "built without modules of PyTorch")])
def test_without_pytorch_the_rest_works(missing, sentence):
    script = (f"import sys; sys.modules['{missing}'] = None\n"
              "import millrace; print(len(millrace.schedules()) > 20)\n"
              "try: import millrace.torch\nexcept ImportError as error: print(error)\n")
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    first, second = ran.stdout.splitlines()
    assert first == "True"
    assert re.search(sentence, second)
