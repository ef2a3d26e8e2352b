# Programs in Python are those of the command: every schedule, with every kind of costs, in every text.
import dataclasses
import json

import numpy as np
import pytest

import millrace

NAMES = [schedule.name for schedule in millrace.schedules()]

# What the command is told, and what Python is.
COSTS = {
    "-": ([], None),
    "times": (["--f", "1.5", "--i", "2", "--w", "0.5"], {"forward": 1.5, "input": 2, "weight": 0.5}),
    "stages": (["--f", "1,2,1,1", "--mem-f", "3"], {"forward": [1, 2, 1, 1], "memory_forward": 3}),
    "links": (
        ["--latency", "0.25", "--bandwidth", "2", "--message-bytes", "1,3,2", "--contention"],
        {"latency": 0.25, "bandwidth": 2, "message_bytes": [1, 3, 2], "contention": True},
    ),
    "pairs": (
        ["--pair-cost", "2.5", "--pair-input", "1.75", "--pair-weight", "1.5", "--pair-forward", "1.25"],
        {"pair_cost": 2.5, "pair_input": 1.75, "pair_weight": 1.5, "pair_forward": 1.25},
    ),
    "cores": (["--cores", "2", "--rank-speed", "1,1,2,1"], {"cores": 2, "rank_speed": np.array([1, 1, 2, 1])}),
}


def same(figures, report):
    """What `simulate --json` prints and a Report."""
    for name in ("makespan", "step", "span", "span_asap", "critical_path", "bubble_makespan",
                 "bubble_makespan_ratio", "bubble_span", "bubble_span_ratio"):
        assert figures[name] == getattr(report, name), name
    assert figures["per_rank"] == [dataclasses.asdict(rank) for rank in report.ranks]


def generated(name, costs):
    try:
        return millrace.generate(name, 4, 12, costs=costs)
    except millrace.InvalidArgument as refusal:
        return str(refusal)


@pytest.mark.parametrize("kind", COSTS)
@pytest.mark.parametrize("name", NAMES)
def test_simulates_as_the_command_does(command, name, kind):
    flags, costs = COSTS[kind]
    ran = command.run("simulate", name, "-p", 4, "-m", 12, "--json", *flags)
    program = generated(name, costs)
    if isinstance(program, str):
        assert ran.returncode == 2 and ran.stdout == ""
        return
    figures = json.loads(ran.stdout)
    same(figures, program.simulate(costs))
    assert figures["valid"] == (program.verify() == [])
    assert figures["capacity"] == [dataclasses.asdict(channel) for channel in program.channel_capacities()]


@pytest.mark.parametrize("name", NAMES)
def test_writes_what_the_command_writes(command, name):
    program = generated(name, None)
    assert isinstance(program, millrace.Program), program
    show = ["show", name, "-p", 4, "-m", 12]
    assert program.to_plan() == command.text(*show, "--plan")
    assert program.svg() == command.text(*show, "--svg")
    assert program.trace() == command.text(*show, "--trace")
    assert str(program) == command.text(*show).split("\n", 1)[1]
    assert millrace.Program.from_plan(program.to_plan()) == program
    csv = command.run(*show, "--csv")
    if csv.returncode == 0:
        assert program.to_csv() == csv.stdout
        assert millrace.Program.from_csv(csv.stdout).texts() == program.texts()
    else:
        with pytest.raises(millrace.InvalidArgument, match="the schedule CSV"):
            program.to_csv()


@pytest.mark.parametrize("name", NAMES)
def test_a_program_is_its_texts_and_its_arrays(name):
    program = generated(name, None)
    joined = [" ".join(texts) for texts in program.texts()]
    halves = [(actions["with_next"]).any() for actions in program.ranks]
    if not any(halves):  # a list of texts has no sign for a pair
        assert millrace.Program(program.texts(), program.shape) == program
        assert millrace.Program(joined) == program
    assert millrace.Program(program.ranks) == program
    assert millrace.Program(program.ranks, program.shape).plan_hash == program.plan_hash


def test_takes_the_parameters_of_the_catalogue(command):
    program = millrace.generate("interleaved", ranks=4, micro_batches=8, chunks=3, group=8)
    assert program.to_plan() == command.text(
        "show", "interleaved", "-p", 4, "-m", 8, "-v", 3, "--group", 8, "--plan")
    program = millrace.generate("gpipe", order="lifo")
    assert program.to_plan() == command.text("show", "gpipe", "--order", "lifo", "--plan")
    limited = millrace.generate("zb-auto", 4, 8, memory_limit=3.5)
    assert limited.to_plan() == command.text("show", "zb-auto", "--memory-limit", 3.5, "--plan")


def test_lists_what_the_command_lists(command):
    rows = json.loads(command.text("list", "--json"))
    assert [row["name"] for row in rows] == NAMES
    for row, schedule in zip(rows, millrace.schedules()):
        assert (row["title"], row["needs"], row["bubble"], row["peak"], row["source"]) == (
            schedule.title, schedule.needs, schedule.bubble, schedule.peak, schedule.source)
        assert schedule.parameters[:2] == ("ranks", "micro_batches")


def test_the_passes_are_those_of_comms_and_recompute(command):
    program = millrace.generate("zb-h1", 4, 8)
    lowered = program.insert_reductions().insert_messages()
    assert lowered.texts() == millrace.Program.from_plan(
        command.text("show", "zb-h1", "-p", 4, "-m", 8, "--comms", "--plan")).texts()
    again = program.insert_recompute("stages:1-2")
    assert again.recomputed_stages == "stages:1-2"
    assert again.simulate().makespan == command.json("simulate", "zb-h1", "--recompute=stages:1-2")["makespan"]
    assert lowered.compute_only() == program
    assert program.merge_backward().split_backward().simulate().makespan >= program.simulate().makespan


def test_a_cost_file_says_the_costs(command, tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({
        "millrace_costs": 1, "unit": "s", "ranks": 2, "chunks": 1, "slices": 1,
        "forward": [1, 2], "input": [1, 1.5], "weight": [0.5, 1],
        "memory_forward": [10, 20], "memory_input": [0, 0], "memory_weight": [-10, -20]}))
    program = millrace.generate("zb-auto", 2, 6, costs=path)
    figures = command.json("simulate", "zb-auto", "-p", 2, "-m", 6, "--costs", path)
    same(figures, program.simulate(path))
    same(figures, program.simulate({"file": str(path)}))
    assert program.simulate(millrace.Costs(file=path, cores=1)).makespan == command.json(
        "simulate", "zb-auto", "-p", 2, "-m", 6, "--costs", path, "--cores", 1)["makespan"]
    assert program.verify(memory_limit=15, costs=path)[0].rule is millrace.Rule.MEMORY


def test_timelines_and_memory_are_arrays():
    report = millrace.generate("1f1b", 2, 2).simulate({"forward": 0.5})
    assert [rank.tolist() for rank in report.timeline] == [
        [[0, 0.5], [0.5, 1], [3, 5], [5.5, 7.5]], [[0.5, 1], [1, 3], [3, 3.5], [3.5, 5.5]]]
    assert report.timeline[0].dtype == np.float64
    assert [rank[:, 1].max() for rank in report.memory] == [2, 1]
    assert report.critical_chain[0] == (0, 0) and report.critical_chain[-1] == (0, 3)
    assert report.makespan == 7.5


def test_a_broken_program_is_explained_as_by_the_command(command, tmp_path):
    program = millrace.Program([["0F0", "0B0", "0F1", "0B1"], ["1F0", "1F1", "1B1"]])
    path = tmp_path / "broken.csv"
    path.write_text(program.to_csv())
    ran = command.run("verify", path, "--json")
    said = json.loads(ran.stdout)["violations"]
    violations = program.verify()
    assert len(said) == len(violations) > 0
    for theirs, ours in zip(said, violations):
        assert theirs["rule"] == ours.rule == millrace.Rule.COMPLETENESS
        assert theirs["sentence"] == ours.message == str(ours)
        assert (theirs["rank"], theirs["position"], theirs["action"]) == (ours.rank, ours.position, ours.action)


def test_a_program_that_cannot_proceed_is_drawn_in_its_order_and_not_simulated():
    stuck = millrace.Program([["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"]])
    assert [violation.rule for violation in stuck.verify()] == [millrace.Rule.ORDER]
    with pytest.raises(millrace.InvalidArgument, match="^the schedule cannot proceed: rank 0 waits in 0B0"):
        stuck.simulate()
    assert str(stuck).startswith("action |")


def test_a_transport_decides_whether_a_program_hangs():
    crossing = millrace.Program([
        ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0B0", "0RECV_B1", "0B1"],
        ["1RECV_F1", "1F1", "1RECV_F0", "1F0", "1B0", "1SEND_B0", "1B1", "1SEND_B1"]])
    assert crossing.verify() == []
    assert crossing.verify(transport=2) == []
    assert [it.rule for it in crossing.verify(transport="fifo")] == [millrace.Rule.MESSAGES]
    for transport in (1, "rendezvous"):
        assert [it.rule for it in crossing.verify(transport=transport)] == [millrace.Rule.DEADLOCK]


def test_slices_and_replicas_are_implied():
    for name in ("seq-1f1b", "dualpipe", "chimera"):
        program = millrace.generate(name, 4, 8)
        implied = millrace.Program(program.ranks)
        assert implied.shape == program.shape, name
        assert implied.verify() == []


def test_a_program_reads_files_of_either_kind(tmp_path):
    program = millrace.generate("1f1b", 3, 5)
    (tmp_path / "plan.json").write_text(program.to_plan(boundaries=[2, 4]))
    (tmp_path / "plan.csv").write_text(program.to_csv())
    assert millrace.Program.read(tmp_path / "plan.json") == program
    assert millrace.Program.read(str(tmp_path / "plan.csv")).name == "plan.csv"
    old = "0F0,0BW0\n1F0,1BW0\n"
    assert millrace.Program.from_csv(old, old_letters=True).texts() == [["0F0", "0B0"], ["1F0", "1B0"]]


def test_steps_in_a_row_and_jitter_are_those_of_the_command(command):
    program = millrace.generate("1f1b", 4, 8)
    said = command.json("simulate", "1f1b", "--iterations", 5, "--jitter", 0.2, "--seed", 7)
    assert program.simulate_iterations(steps=5).per_step == said["iterations"]["per_step_overlap"]
    assert program.simulate_iterations(steps=5, barrier=True).ends[-1] == said["iterations"]["total_barrier"]
    spread = dataclasses.asdict(program.simulate_jitter(amount=0.2, runs=100, seed=7))
    assert spread == {name: said["jitter"][name] for name in spread}


def test_notebooks_show_a_program():
    program = millrace.generate("zb-v", 4, 8)
    assert program._repr_svg_() == program.svg() and program.svg() in program._repr_html_()
    assert program.svg(title="mine").count("mine") >= 1
    assert "<html" in program.html(others=[millrace.generate("zb-v", 4, 4)])
    assert program.ascii(columns=40).count("\n") == 4


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v", "dualpipe-v"])
@pytest.mark.parametrize("engine", ["torch", "torchtitan", "automodel"])
def test_csv_for_engines_is_that_of_the_command(command, tmp_path, schedule, engine):
    file = tmp_path / "plan.csv"
    refused = command.run("show", schedule, "-p", 2, "-m", 4, "--for", engine, "--csv", file)
    program = millrace.generate(schedule, 2, 4)
    if refused.returncode != 0:
        with pytest.raises(millrace.InvalidArgument) as raised:
            program.to_pytorch_csv(for_=engine)
        assert str(raised.value).split(";")[0] in refused.stderr
    else:
        assert program.to_pytorch_csv(for_=engine) == file.read_text()


def test_actions_are_rows_that_numpy_can_write():
    rows = np.zeros(4, dtype=millrace.action_dtype)
    rows["op"] = [millrace.Op.FORWARD, millrace.Op.FORWARD, millrace.Op.BACKWARD, millrace.Op.BACKWARD]
    rows["micro_batch"] = [0, 1, 0, 1]
    assert millrace.Program([rows]).texts() == [["0F0", "0F1", "0B0", "0B1"]]
    assert millrace.action_dtype.itemsize == 16
    letters = ["F", "B", "I", "W", "R", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "REDUCE_GRAD", "STEP"]
    for op, letter in zip(millrace.Op, letters, strict=True):
        rows[0]["op"] = op
        assert millrace.Program([rows]).texts()[0][0].startswith("0" + letter)


def test_a_plan_keeps_the_boundaries_that_it_was_read_with(tmp_path):
    program = millrace.generate("1f1b", 3, 4)
    assert program.boundaries == []
    text = program.to_plan(boundaries=[2, 5])
    (tmp_path / "plan.json").write_text(text)
    for read in (millrace.Program.from_plan(text), millrace.Program.read(tmp_path / "plan.json")):
        assert read.boundaries == [2, 5] and read == program
        assert read.to_plan() == text
        assert read.to_plan(boundaries=[]) == program.to_plan()
        with pytest.raises(AttributeError):
            read.boundaries = [1, 2]
