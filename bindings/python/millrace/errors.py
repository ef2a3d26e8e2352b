"""What millrace raises: the library's exceptions, with its sentences."""


class Error(RuntimeError):
    """Root of everything that millrace raises by itself."""


class InvalidArgument(Error, ValueError):
    """An argument that is not allowed; the sentence names it, its value and what is."""


class DataError(Error, ValueError):
    """What was read is damaged or not of the promised form; the sentence says where."""


class Stopped(Error):
    """A computation that was stopped and has nothing to give back."""


class StepError(Error):
    """A pass of a step failed. The sentence names rank, stage, unit and action and has the traceback of
    the stage; `__cause__` is what it raised. The next step works."""

    def __init__(self, sentence: str, rank: int, action: str) -> None:
        super().__init__(sentence)
        self.rank = rank
        self.action = action
