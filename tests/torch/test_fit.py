"""fit(), checkpoints, validation and early stopping of a Pipeline, in one process and under launch."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

import millrace
import millrace.torch

import launched_fit
from launched_fit import train

HERE = pathlib.Path(__file__).parent
COMMAND = os.environ.get("MILLRACE_COMMAND", str(HERE.parents[1] / "build/release/millrace"))


def launched(*words, code=0, flags=()):
    """The program in two processes: what rank 0 printed, or the messages of a job that failed. No
    code: any; which rank of a failed job ends first is chance."""
    line = [COMMAND, "launch", "-n", "2", *flags, "--", sys.executable, str(HERE / "launched_fit.py"), *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240)
    assert done.returncode == code or code is None and done.returncode, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]) if code == 0 else done.stderr


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train(tmp_path_factory.mktemp("undisturbed") / "run")


def test_launch_has_the_bits_of_one_process(undisturbed, tmp_path):
    assert launched(tmp_path / "run") == undisturbed
    assert [step for step, *_ in undisturbed["validations"]] == [3, 6, 9, 12, 15]


@pytest.mark.parametrize("first, second", [(train, launched), (launched, train)])
def test_a_resumed_run_ends_as_an_undisturbed_one(undisturbed, tmp_path, first, second):
    stopped = first(tmp_path / "run", "steps=6")
    resumed = second(tmp_path / "run", "resume")

    assert stopped["steps"] == 6
    assert resumed["resumed"].endswith("step-0000000006")
    assert resumed["hash"] == undisturbed["hash"]
    assert resumed["validations"] == undisturbed["validations"][2:]


def test_another_schedule_resumes_to_the_same_bits(undisturbed, tmp_path):
    train(tmp_path / "run", "steps=6")
    resumed = train(tmp_path / "run", "resume", schedule="1f1b")

    assert resumed["hash"] == undisturbed["hash"]


def test_a_stopped_rank_restarts_from_the_newest_checkpoint(undisturbed, tmp_path):
    restarted = launched(tmp_path / "run", "stop=pass:7", flags=("--restarts", "1", "--heartbeat-timeout", "3"))

    assert restarted["hash"] == undisturbed["hash"]


def test_the_best_checkpoint_is_kept_and_marked(tmp_path):
    ended = train(tmp_path / "run")
    best = [step for step, _, is_best in ended["validations"] if is_best][-1]
    listed = subprocess.run([COMMAND, "checkpoint", "ls", str(tmp_path / "run")], capture_output=True, text=True)

    marked = [line for line in listed.stdout.splitlines() if "best by loss" in line]
    assert len(marked) == 1 and f"step-{best:010}" in marked[0]
    pipeline = made()
    pipeline.resume(tmp_path / "run/best")
    assert pipeline.mini_batches == best


def test_another_optimizer_than_the_checkpoint_s_is_a_mismatch(tmp_path):
    made(save_folder=tmp_path / "run").save()
    model = launched_fit.model()
    groups = [{"params": [one]} for one in model.parameters()]
    pipeline = millrace.torch.Pipeline(model, loss=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.SGD(groups),
                                       ranks=2, micro_batches=4)

    with pytest.raises(millrace.Mismatch, match="1 parameter groups, this one 6"):
        pipeline.resume(tmp_path / "run")


def test_early_stopping_ends_fit_and_says_why(tmp_path):
    ended = train(tmp_path / "run", "early_stopping=2", "delta=10")

    assert ended["steps"] == 9
    assert ended["early_stop"].startswith("validation loss did not improve by 10 in 2 validations")
    again = train(tmp_path / "run", "early_stopping=2", "delta=10", "resume")
    assert again["steps"] == 9


def test_validation_leaves_the_training_s_bits(undisturbed, tmp_path):
    pipeline = made()
    inputs, targets = launched_fit.data()
    pipeline.fit((inputs[:108], targets[:108]), epochs=4, batch_size=32)

    assert pipeline.weights_hash() == undisturbed["hash"]


def made(**options):
    trained = launched_fit.model()
    optimizer = torch.optim.AdamW(trained.parameters(), 3e-3)
    return millrace.torch.Pipeline(
        trained, loss=torch.nn.CrossEntropyLoss(), optimizer=optimizer,
        lr_scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5), clip_norm=0.5, schedule="zb-h1", ranks=2,
        micro_batches=4, **options)


def test_shards_open_with_safetensors(tmp_path):
    pipeline = made(save_folder=tmp_path / "run")
    pipeline.fit(launched_fit.data(), batch_size=60)
    folder = pipeline.save()

    loaded = {}
    for file in pathlib.Path(folder).glob("stage-?.safetensors"):
        loaded.update(load_file(file))
    assert loaded.keys() == pipeline.state_dict().keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in pipeline.state_dict().items())


def test_a_damaged_checkpoint_is_passed_over_for_an_older_one(tmp_path):
    pipeline = made(save_folder=tmp_path / "run")
    pipeline.fit(launched_fit.data(), batch_size=60, save_every=1)
    newest, older = sorted((tmp_path / "run").iterdir())[::-1][:2]
    file = newest / "stage-0.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")

    assert made().resume(tmp_path / "run") == str(older)
    with pytest.raises(millrace.DataError, match="stage-0.safetensors"):
        made().resume(newest)


def test_a_locked_folder_names_the_job_that_has_it(tmp_path):
    first, second = made(save_folder=tmp_path / "run"), made(save_folder=tmp_path / "run")
    with first.checkpoints.held():
        with pytest.raises(millrace.Error, match="another job"):
            second.save()
    second.save()


def test_a_folder_that_cannot_be_written_is_found_before_the_first_step(tmp_path):
    (tmp_path / "file").touch()
    pipeline = made(save_folder=tmp_path / "file" / "run")
    with pytest.raises(millrace.Error, match="file/run: the folder cannot be made"):
        pipeline.fit(launched_fit.data(), batch_size=60)
    assert pipeline.mini_batches == 0


def test_ranks_with_other_mini_batches_are_told(tmp_path):
    assert "ranks 0 and 1 were given different mini-batches" in launched(tmp_path / "run", "apart", code=None)


def test_progress_counts_the_steps_where_tqdm_is_there(monkeypatch):
    class Bar:
        made = []

        def __init__(self, **options):
            self.options, self.steps, self.said = options, 0, {}
            Bar.made.append(self)

        def update(self):
            self.steps += 1

        def set_postfix(self, **said):
            self.said = said

    monkeypatch.setitem(sys.modules, "tqdm.auto", type(sys)("tqdm.auto"))
    sys.modules["tqdm.auto"].tqdm = Bar
    report = made().fit(launched_fit.data(), batch_size=60, epochs=2, progress=True)
    assert [(one.options, one.steps) for one in Bar.made] == [({"total": 4, "unit": "step"}, 4)]
    assert Bar.made[0].said["epoch"] == 2 and report.samples == 240
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    assert made().fit(launched_fit.data(), batch_size=60, progress=True).samples == 120


@pytest.mark.parametrize("options, message", [
    ({"validate_every": "x"}, "validate_every 'x': must be steps, as 500, or epochs, as '2ep'"),
    ({"keep_best": "loss"}, "keep_best loss: needs validation"),
    ({"early_stopping": 2}, "early_stopping 2: needs validation"),
    ({"keep_best": "bleu", "validation": 0.1}, "needs save_folder|must be loss or accuracy"),
    ({"save_every": 2}, "save_every 2: needs save_folder"),
    ({"validation": 2.0}, "between 0 and 1"),
])
def test_bad_options_of_fit_get_one_sentence(options, message):
    with pytest.raises(millrace.InvalidArgument, match=message) as raised:
        made().fit(launched_fit.data(), **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("where", ["pass", "norm", "optimizer"])
def test_a_stopped_rank_is_named(tmp_path, where):
    told = launched(tmp_path / "run", f"stop={where}:3", code=75, flags=("--heartbeat-timeout", "2"))

    assert "rank 1" in told


def test_a_slow_pass_is_no_hang(tmp_path):
    # After a hundred passes of a millisecond, history alone would allow an action about a second.
    assert launched(tmp_path / "run", "steps=40", "stop=sleep:35")["steps"] == 40
