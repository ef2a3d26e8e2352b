"""fit() leaves log, metrics and page of a run as `millrace train` does, in one process and under launch, over
resumes and restarts."""

import csv
import json
import os
import pathlib
import re
import subprocess
import sys

import launched_fit
import millrace
import pytest
import torch
from launched_fit import train
from plain_loop import layers, pipeline_of, points

HERE = pathlib.Path(__file__).parent
COMMAND = os.environ.get("MILLRACE_COMMAND", str(HERE.parents[1] / "build/release/millrace"))
torch.set_num_threads(1)


def launched(folder, *words, flags=()):
    line = [COMMAND, "launch", "-n", "2", *flags, "--", sys.executable, str(HERE / "launched_fit.py"), str(folder), *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def lines_of(folder, name="log.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def sums_are_right(records):
    """Every rank's seconds by cause add up to the step; another process has a step's end of its own."""
    for at in range(2):
        ranks = [record["ranks"][at] for record in records]
        sums = [sum(rank[cause] for cause in ("compute", "wait", "transfer", "data", "optimizer", "save", "other"))
                for rank in ranks]
        assert sum(sums) == pytest.approx(sum(record["seconds"] for record in records), rel=0.001 if at == 0 else 0.3)
        assert all(rank["compute"] > 0 and rank["optimizer"] > 0 for rank in ranks)
        assert sum(rank["save"] for rank in ranks) > 0 and sum(rank["data"] for rank in ranks) > 0


@pytest.mark.parametrize("run", [train, launched])
def test_log_metrics_and_page_of_a_run(tmp_path, run):
    ended = run(tmp_path / "run", f"watch={tmp_path}")

    records = lines_of(tmp_path)
    assert [one["step"] for one in records] == list(range(1, ended["steps"] + 1))
    assert [(one["epoch"], one["batch"]) for one in records[:5]] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
    assert sum(one["samples"] * one["loss"] for one in records[:4]) / 108 == pytest.approx(ended["epochs"][0], rel=1e-9)
    validated = [one["validation_loss"] for one in records]
    assert validated[:2] == [None, None] and validated[2:5] == [ended["validations"][0][1]] * 3
    sums_are_right(records)
    text = (tmp_path / "run.prom").read_text()
    assert re.search(rf"^millrace_steps_total {ended['steps']}$", text, re.M) and 'cause="compute"' in text
    page = (tmp_path / "run.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and page.count("<svg") >= 3 and "zb-h1" in page


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_resumed_run_continues_its_log(tmp_path, suffix):
    log = f"log={tmp_path / 'log'}.{suffix}"
    train(tmp_path / "run", "steps=6", log)
    train(tmp_path / "run", "steps=4", "resume", log)  # never mind: the checkpoint at 6 stays
    train(tmp_path / "run", "resume", log)

    text = (tmp_path / f"log.{suffix}").read_text()
    steps = ([int(row["step"]) for row in csv.DictReader(text.splitlines())] if suffix == "csv" else
             [json.loads(line)["step"] for line in text.splitlines()])
    assert steps == list(range(1, 17))


def test_a_restart_is_in_log_and_metrics(tmp_path):
    launched(tmp_path / "run", f"watch={tmp_path}", "stop=pass:7", flags=("--restarts", "1", "--heartbeat-timeout", "3"))

    records = lines_of(tmp_path)
    assert [one["step"] for one in records] == list(range(1, 17))
    assert [(one["step"], one["restarts"]) for one in records if one["restarts"]] == [(7, 1)]
    assert records[6]["downtime"] > 1 and sum(one["downtime"] for one in records) == records[6]["downtime"]
    assert re.search(r"^millrace_restarts_total 1$", (tmp_path / "run.prom").read_text(), re.M)


def test_a_log_that_is_none_is_refused_by_line(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step":1}\n')
    pipeline = pipeline_of(layers())
    pipeline.step(*points())
    with pytest.raises(millrace.InvalidArgument, match="log.jsonl: line 1 is not a whole record of a step"):
        pipeline.fit(points(), log=tmp_path / "log.jsonl")
    with pytest.raises(millrace.InvalidArgument, match="No such file or directory"):
        pipeline.fit(points(), report=tmp_path / "none/run.html")


def test_metrics_or_a_page_without_a_log(tmp_path):
    pipeline_of(layers()).fit(points(), metrics=tmp_path / "run.prom")
    assert "millrace_steps_total 1" in (tmp_path / "run.prom").read_text()
    pipeline_of(layers()).fit(points(), report=tmp_path / "run.html")
    assert "<svg" in (tmp_path / "run.html").read_text()


def test_a_log_of_other_bytes_is_refused(tmp_path):
    (tmp_path / "log.jsonl").write_bytes(b"\xff\xfe\n")
    pipeline = pipeline_of(layers())
    pipeline.step(*points())
    with pytest.raises(millrace.InvalidArgument, match="log.jsonl: line 1 is not a whole record of a step"):
        pipeline.fit(points(), log=tmp_path / "log.jsonl")


def test_a_failed_run_leaves_its_page(tmp_path):
    def fails(report):
        if report.global_step == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pipeline_of(layers()).fit(points(), batch_size=8, epochs=3, on_step=fails, log=tmp_path / "log.jsonl",
                                  report=tmp_path / "run.html")
    assert "<svg" in (tmp_path / "run.html").read_text() and len(lines_of(tmp_path)) == 1
