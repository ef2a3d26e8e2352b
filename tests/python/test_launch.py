# A program under `millrace launch`, a process per rank: the bits of one process, and an end with a name and a code.
import contextlib
import os
import pathlib
import select
import signal
import subprocess
import sys

import pytest

import millrace

PROGRAM = str(pathlib.Path(__file__).with_name("launched.py"))


def alone(*words, **variables):
    ran = subprocess.run([sys.executable, PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=120,
                         env={**os.environ, **variables})
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


class Launches:
    """Launches the program, and finds what a launch leaves behind."""

    def __init__(self, command, folder):
        self.command, self.folder = command, folder
        folder.mkdir()
        self.mark = f"mark-of-{folder}"
        self.environment = {**os.environ, "TMPDIR": str(folder), "MARK": self.mark}

    def words(self, flags, words, program):
        return [self.command.path, "launch", *map(str, flags), "--", *program, *map(str, words)]

    def start(self, flags, words):
        return subprocess.Popen(self.words(flags, words, [sys.executable, PROGRAM]), env=self.environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, flags, words=(), program=(sys.executable, PROGRAM)):
        ran = subprocess.run(self.words(flags, words, program), env=self.environment, capture_output=True, text=True,
                             timeout=120)
        self.check_nothing_left()
        return ran

    def processes(self):
        """Those that a launch here started and that still live."""
        alive = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    alive.append(entry.name)
            except OSError:
                pass
        return alive

    def check_nothing_left(self):
        """The launch's own broom may be a moment later than the launch."""
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                end = os.pidfd_open(int(process))
                assert select.select([end], [], [], 10)[0], process
                os.close(end)
        assert list(self.folder.iterdir()) == []


@pytest.fixture
def launches(command, tmp_path):
    return Launches(command, tmp_path / "place")


@pytest.mark.parametrize("ranks, schedule, link, words", [
    (3, "1f1b", "ipc", ["--recompute"]), (2, "zb-v", "tcp", []), (2, "chimera", "ipc", []), (1, "zb-h1", "tcp", []),
    (4, "zb-h1", "ipc", [])])
def test_a_process_per_rank_gives_the_bits_of_one(launches, ranks, schedule, link, words):
    words = ["--schedule", schedule, "--ranks", ranks, *words]
    ran = launches.run(["-n", ranks, "--endpoint", link], [*words, "--made-here"])
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == alone(*words)


def test_a_process_makes_its_own_stages_and_predicts_where_the_last_one_is(launches):
    ran = launches.run(["-n", 2, "--log-dir", launches.folder.parent / "logs"], ["--made-here"])
    logs = [(launches.folder.parent / "logs" / f"rank-{rank}.log").read_text() for rank in (0, 1)]
    assert ran.returncode == 0
    assert "made 1 of 2" in logs[0] and "made 1 of 2" in logs[1]
    assert "predicted" not in logs[0] and "predicted (13, 6)" in logs[1]


def test_one_process_goes_on_from_what_several_saved(launches, tmp_path):
    ran = launches.run(["-n", 2, "--endpoint", "tcp"], ["--fit", "--folder", tmp_path / "saved"])
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == alone("--fit", "--folder", tmp_path / "other")
    weights = ran.stdout.split("weights ")[1].split()[0]
    assert alone("--schedule", "gpipe", "--folder", tmp_path / "saved", "--resume") == f"resumed 9 {weights}\n"


def test_ranks_validate_as_one_process_does(launches, tmp_path):
    words = ["--fit", "--validate", "--folder"]
    ran = launches.run(["-n", 2], [*words, tmp_path / "saved"])
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == alone(*words, tmp_path / "other")
    assert "validations (" in ran.stdout and ", True, " in ran.stdout
    best = [tmp_path / name / "best" for name in ("saved", "other")]
    shown = [subprocess.run([launches.command.path, "checkpoint", "show", path], capture_output=True, text=True) for path in best]
    assert shown[0].returncode == 0, shown[0].stderr
    assert [line for line in shown[0].stdout.splitlines() if line.startswith("weights")] == [
        line for line in shown[1].stdout.splitlines() if line.startswith("weights")]


# What rank 1 does, the exit code of all, and what is said of it.
ENDS = {
    "fails": (1, ["[rank 1] millrace: forward of stage 1, micro-batch 2 failed on rank 1: ZeroDivisionError: out of luck",
                  "rank 1 ended with exit code 1"]),
    "throws": (1, ["[rank 1] RuntimeError: so be it", "rank 1 ended with exit code 1"]),
    "exits": (3, ["rank 1 ended with exit code 3"]),
    "dies": (69, ["rank 1 was ended by signal 9"]),
    "ends": (69, ["rank 1 left"]),
    "is refused": (2, ["[rank 1] millrace: unknown schedule 'zbv'", "rank 1 ended with exit code 2"]),
    "has another seed": (78, ["seed differs: rank 0 has '1', rank 1 has '7'"]),
    "shuffles": (78, ["inputs of the mini-batch differs: rank 0 has '", "The likely cause is a shuffle"]),
    "hangs": (75, ["rank 0 ended with exit code 75"]),
    "stops": (75, ["rank 1 was stopped (signal 19) and did not go on"]),
    "never joins": (75, ["rank 1 did not join within 1 s (join_launch)"]),
}


@pytest.mark.parametrize("deed", ENDS)
def test_ends_with_the_code_and_the_name_of_what_went_wrong(launches, deed):
    code, sentences = ENDS[deed]
    grace = 1 if deed in ("hangs", "stops", "never joins") else 20  # where rank 1 ends by itself it may take its time
    flags = ["-n", 2, "--grace", grace]
    flags += {"never joins": ["--join-timeout", 1], "hangs": ["--action-timeout", 1], "stops": ["--heartbeat-timeout", 1.5]}.get(deed, [])
    ran = launches.run(flags, ["--deed", 1, deed])
    assert ran.returncode == code, ran.stderr
    assert "Aborted" not in ran.stderr
    for sentence in sentences:
        assert sentence in ran.stderr


@pytest.mark.parametrize("link", ["shm", "tcp"])
def test_a_restarted_program_has_its_attempt_and_the_bits_of_one(launches, link):
    ran = launches.run(["-n", 2, "--restarts", 1, "--endpoint", link], ["--deed", 1, "dies once"])
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == alone()
    assert ("rank 1 was ended by signal 9 (Killed) in step 1; restart 1 in 0.1 s; the program continues from its own "
            "checkpoint, if it has one\n") in ran.stderr


def test_a_restarted_program_continues_from_what_it_saved(launches, tmp_path):
    ran = launches.run(["-n", 2, "--restarts", 1],
                       ["--restartable", "--folder", tmp_path / "saved", "--deed", 1, "dies later"])
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == alone("--restartable", "--folder", tmp_path / "other")
    assert "; restart 1 in 0.1 s; " in ran.stderr and "resumed" in ran.stderr


def test_a_program_that_always_hangs_in_a_step_ends(launches):
    ran = launches.run(["-n", 2, "--restarts", 9, "--grace", 1, "--action-timeout", 1], ["--deed", 1, "hangs"])
    assert ran.returncode == 75
    assert ran.stderr.count("rank 1 hung in step 1; restart ") == 2
    assert "not started again: the same failure in the same step, 3 times" in ran.stderr


def test_a_traceback_in_a_stage_is_in_the_report_with_rank_stage_and_unit(launches):
    ran = launches.run(["-n", 3, "--endpoint", "tcp"], ["--ranks", 3, "--deed", 1, "fails"])
    assert ran.returncode == 1
    assert "[rank 1] ZeroDivisionError: out of luck" in ran.stderr and "in no_luck" in ran.stderr
    assert ran.stderr.splitlines()[-2:] == [
        "[rank 1] millrace: forward of stage 1, micro-batch 2 failed on rank 1: ZeroDivisionError: out of luck",
        "millrace launch: rank 1 ended with exit code 1"]


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_all(launches, number, code):
    started = launches.start(["-n", 2], ["--deed", "all", "goes on"])
    assert started.stderr.readline() == "the first step is done\n"
    assert len(launches.processes()) >= 3  # the launch and its ranks
    started.send_signal(number)
    output, _ = started.communicate(timeout=60)
    assert (started.returncode, output) == (code, "")
    launches.check_nothing_left()


def test_ctrl_c_ends_those_that_wait_for_the_others(launches):
    started = launches.start(["-n", 2, "--grace", 30], ["--deed", 1, "never joins"])
    while not (list(launches.folder.glob("*/joined-0")) and
               any("it does not join" in log.read_text() for log in launches.folder.glob("*/rank-1.log"))):
        assert started.poll() is None
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=20)  # and not killed when the grace has passed
    assert started.returncode == 130
    launches.check_nothing_left()


def test_fields_of_a_program_are_compared(launches):
    same = launches.run(["-n", 2], ["--deed", "all", "asks first"])
    assert same.returncode == 0 and same.stdout.startswith("rank 0 of 2 True\n"), same.stderr
    for rank in (0, 1):  # the other one has none
        ran = launches.run(["-n", 2], ["--deed", rank, "has another corpus"])
        assert ran.returncode == 78 and "corpus differs" in ran.stderr


def test_a_program_for_other_ranks_is_refused(launches):
    ran = launches.run(["-n", 2], ["--ranks", 3])
    assert ran.returncode == 2
    assert "the program has 3 ranks, but 2 processes were launched" in ran.stderr


def test_a_program_that_joins_nobody_is_told_so(launches):
    ran = launches.run(["-n", 2], program=[sys.executable, "-c", "print('hello')"])
    assert ran.returncode == 0 and "no rank has joined, each worked alone" in ran.stderr


def test_nobody_launched_this_one():
    place = millrace.join_launch()
    assert (place.rank, place.world, place.log_directory) == (0, 1, "")
    assert sys.excepthook is sys.__excepthook__
    with pytest.raises(millrace.InvalidArgument, match="the ranks have met"):
        millrace.join_launch({"corpus": 1})


def test_an_engine_that_numbered_this_process_for_something_else_launched_nobody():
    plain = alone()
    assert alone(SLURM_PROCID="1", SLURM_NTASKS="4", SLURM_STEP_ID="0") == plain
    assert alone(JOB_COMPLETION_INDEX="2") == plain
    script = "import millrace; millrace.join_launch()"
    ran = subprocess.run([sys.executable, "-c", script], env={**os.environ, "RANK": "1", "WORLD_SIZE": "2"},
                         capture_output=True, text=True, timeout=60)
    assert "InvalidArgument: MILLRACE_RENDEZVOUS is not set, but there are 2 ranks" in ran.stderr
