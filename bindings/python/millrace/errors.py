"""What millrace raises: the library's exceptions, with its sentences."""


class Error(RuntimeError):
    """Root of everything that millrace raises by itself. `exit_code` is what a process ends with that
    `millrace launch` started and that nobody catches it in."""

    exit_code: int = 1


class InvalidArgument(Error, ValueError):
    """An argument that is not allowed; the sentence names it, its value and what is."""

    exit_code = 2


class DataError(Error, ValueError):
    """What was read is damaged or not of the promised form; the sentence says where."""

    exit_code = 65


class Mismatch(Error):
    """Ranks were built for, or given, different things; all of them raise it, and it names the first."""

    exit_code = 78


class PeerLost(Error):
    """Another rank's process has ended, or cannot be reached."""

    exit_code = 69


class PeerHangs(Error):
    """Another rank is alive but makes no progress; the sentence says what every rank was doing."""

    exit_code = 75


class Stopped(Error):
    """A computation that was stopped and has nothing to give back."""


class StepError(Error):
    """A pass of a step failed. The sentence names rank, stage, unit and action and has the traceback of
    the stage; `__cause__` is what it raised. The next step works, but for ranks in processes of their
    own, where the others have ended with it."""

    def __init__(self, sentence: str, rank: int, action: str) -> None:
        super().__init__(sentence)
        self.rank = rank
        self.action = action
