# Searching, comparing and sweeping: the figures of the command, ended by Ctrl-C, told as they go.
import signal
import subprocess
import sys

import numpy as np
import pytest

import millrace


def test_a_search_finds_what_the_command_finds(command):
    said = command.json("search", "-p", 3, "-m", 4, "--w", 0.5, "--memory-limit", 2, "--budget", 300, "--seed", 4)
    result = millrace.search(3, 4, costs={"weight": 0.5}, memory_limit=2, budget=300, seed=4)
    best = result.best
    assert best.makespan == said["makespan"] and best.peak_memory == said["peak_memory"]
    assert (result.lower_bound, result.gap, result.proven, result.evaluations, result.cut_by_time) == (
        said["lower_bound"], said["gap"], said["proven"], said["evaluations"], said["cut_by_time"])
    assert [found.makespan for found in result.front] == [found["makespan"] for found in said["front"]]
    assert best.program.verify(memory_limit=2, costs={"weight": 0.5}) == []
    assert best.program.simulate({"weight": 0.5}).makespan == best.makespan


def test_a_search_for_steps_of_several_passes_finds_what_the_command_finds(command):
    said = command.json("search", "-p", 2, "-m", 4, "-d", 2, "--gradient-bytes", 24, "--bandwidth", 1,
                        "--accumulate", 3, "--budget", 300)
    costs = {"data_parallel": 2, "gradient_bytes": 24, "bandwidth": 1, "accumulate": 3}
    result = millrace.search(2, 4, costs=costs, budget=300)
    assert (result.best.step, result.lower_bound) == (said["step"], said["lower_bound"])
    reduced = result.best.program.insert_reductions(2)
    assert reduced.simulate(costs).step == pytest.approx(result.best.step) and result.best.step > result.best.makespan
    assert millrace.Costs(**costs).accumulate == 3 and millrace.Costs().accumulate == 1


@pytest.mark.parametrize("accumulate", [0, 1.5, [1, 2]])
def test_a_step_has_a_whole_number_of_passes(accumulate):
    with pytest.raises(millrace.InvalidArgument, match="accumulate"):
        millrace.search(2, 4, costs={"accumulate": accumulate})


def test_a_sweep_takes_passes_and_copies(command):
    costs = [{"bandwidth": 1, "gradient_bytes": 8, "accumulate": passes} for passes in (1, 3)]
    table = millrace.sweep(["zb-v"], 2, 4, data_parallel=[1, 2], costs=costs)
    assert table.csv == command.text("sweep", "zb-v", "-p", "2", "-m", "4", "-d", "1,2", "--accumulate", "1,3",
                                     "--bandwidth", "1", "--gradient-bytes", "8")
    assert [(row.data_parallel, row.accumulate) for row in table] == [(1, 1), (1, 3), (2, 1), (2, 3)]
    one, three = table[2:]
    assert three.step == 3 * one.makespan - 2 * one.sums_exposed and one.sums_exposed > 0
    with pytest.raises(millrace.InvalidArgument, match="data_parallel is 2 in the costs; a sweep takes it next to them"):
        millrace.sweep(["1f1b"], 2, [4], costs={"data_parallel": 2})


def test_a_search_weighs_pairs_and_whole_backwards(command):
    said = command.json("search", "-p", 2, "-m", 4, "--pair-cost", 2, "--full-backward", "--budget", 300)
    result = millrace.search(2, 4, costs={"pair_cost": 2}, full_backward=True, budget=300)
    assert result.best.makespan == said["makespan"] < millrace.search(2, 4, full_backward=True, budget=300).best.makespan
    for found in result.front:
        assert not {"I", "W"} & set("".join(text for rank in found.program.texts() for text in rank))


def test_what_was_found_can_be_generated_again():
    found = next(found for found in millrace.search(2, 6, budget=0).front if not found.refinement)
    again = millrace.generate(found.generator, 2, 6, **found.parameters)
    assert again.decouple_pairs() == found.program


def test_a_search_of_a_program_keeps_its_placement():
    program = millrace.generate("zb-v", 3, 6)
    result = program.search(memory_limit=3, budget=200)
    assert result.best.program.shape.placement == program.shape.placement
    assert result.best.peak_memory <= 3


def test_a_search_that_nothing_fits_has_no_best():
    result = millrace.search(2, 4, memory_limit=0.25, budget=10)
    assert result.best is None and result.front == ()


def test_a_search_tells_how_far_it_is():
    seen = []
    millrace.search(3, 4, budget=50, progress=seen.append)
    assert (seen[0].at, seen[0].timed, seen[0].best) == ("gpipe", 0, float("inf"))
    assert seen[5].timed == 5 < seen[5].candidates
    assert min(at.best for at in seen) == seen[-1].best < float("inf")


def test_what_progress_raises_ends_the_search():
    def fed_up(at):
        raise LookupError("enough of " + at.at)

    with pytest.raises(LookupError, match="enough of"):
        millrace.search(4, 8, progress=fed_up)


LONG = {
    # The first line is printed when the work has begun.
    "search": "millrace.search(8, 64, budget=10**9, progress=told)",
    "compare": "told(0); millrace.compare(['v-zb'] * 100000, 16, 256)",
    "sweep": "told(0); millrace.sweep(['v-zb'] * 1024, 16, [256] * 64)",
}


@pytest.mark.parametrize("call", LONG)
def test_ctrl_c_ends_it(call):
    program = (
        "import millrace\n"
        "def told(at, said=[]):\n"
        "    said or print('begun', flush=True)\n"
        "    said.append(at)\n"
        "try:\n"
        f"    {LONG[call]}\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n")
    # A group of its own, and Ctrl-C as a terminal's shell has it: a test runner may ignore it.
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    try:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert rest == "interrupted\n" and process.returncode == 0


def test_the_interpreter_goes_on_during_a_search():
    import threading

    turns, done = [], threading.Event()

    def other():
        while not done.is_set():
            turns.append(1)

    thread = threading.Thread(target=other)
    thread.start()
    before = len(turns)
    millrace.search(4, 8, budget=2000, bidirectional=False)
    during = len(turns) - before
    done.set()
    thread.join()
    assert during > 100


def test_compares_as_the_command_does(command):
    names = ["1f1b", "interleaved", "zb-v", "dualpipe"]
    said = command.json("compare", ",".join(names), "-p", 4, "-m", 8, "-v", 2, "--latency", 0.5)
    rows = millrace.compare(names, 4, 8, chunks=2, costs={"latency": 0.5})
    for name, row in zip(names, rows, strict=True):
        assert row.report.makespan == said[name]["makespan"], name
        assert row.report.span == said[name]["span"], name
        assert (row.violations == ()) == said[name]["valid"]
        assert ["-v 2"] * len(row.left_out) == said[name]["left_out"]


def test_a_program_of_ones_own_is_compared_with_the_catalogue():
    mine = millrace.Program([["0F0", "0B0"], ["1F0", "1B0"]], name="mine")
    rows = millrace.compare([mine, "1f1b", "chimera"], ranks=2, micro_batches=1)
    assert [row.name for row in rows][0] == "mine"
    assert rows[0].report.makespan == rows[1].report.makespan == 6
    assert rows[0].accumulation.ascending
    assert rows[2].program is None and rows[2].refused


def test_a_sweep_is_the_table_of_the_command(command):
    words = ["sweep", "1f1b,zb-h1,interleaved", "-p", "2,4", "-m", "4..6", "-v", "2,3",
             "--times", "1:1:1,1:2:0.5", "--latency", "0.5", "--memory-limit", "none,1p,2"]
    costs = [millrace.Costs(latency=0.5),
             {"forward": 1, "input": 2, "weight": 0.5, "latency": 0.5}]
    tables = [millrace.sweep(["1f1b", "zb-h1", "interleaved"], [2, 4], range(4, 7), chunks=[2, 3], costs=costs,
                             memory_limits=[None, "1p", 2], threads=threads) for threads in (1, 2, None)]
    assert all(table.csv == command.text(*words) for table in tables)
    table = tables[0]
    assert list(table) == list(tables[1]) and len(table) == 2 * 3 * 2 * 3 * (1 + 1 + 2)
    assert table.column("makespan").dtype == np.float64
    assert table.column("makespan")[0] == table[0].makespan


def test_a_combination_without_meaning_is_a_row_with_its_reason():
    table = millrace.sweep(["chimera"], ranks=[3, 4], micro_batches=4)
    assert table[0].makespan is None and "even" in table[0].reason
    assert np.isnan(table.column("makespan")[0]) and table[1].reason == ""


def test_all_schedules_can_be_swept_at_once():
    table = millrace.sweep("all", ranks=2, micro_batches=4, costs=(1, 1, 1))
    names = {schedule.name for schedule in millrace.schedules()}
    assert {row.schedule for row in table} == names | {"v-half + relist", "v-min + relist"}
    assert all(row.valid or row.reason for row in table)
