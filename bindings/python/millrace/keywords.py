"""One sentence for a call whose arguments do not fit. The compiled half answers such a call with all of
its signatures and all that it was given; here the answer names the argument and the nearest one."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .errors import InvalidArgument

# Words of PyTorch for things that have another name here.
_ELSEWHERE = {
    "lr": "learning_rate",
    "eps": "epsilon",
    "betas": "beta1 and beta2",
    "accumulation_steps": "accumulate",
    "num_microbatches": "micro_batches",
    "n_microbatches": "micro_batches",
}
_OF_THE_OPTIMIZER = ("lr", "betas", "eps", "momentum", "weight_decay")
# What newer versions of pybind11 write for a type in a docstring.
_SPELLINGS = {
    "typing.SupportsInt | typing.SupportsIndex": "int",
    "typing.SupportsFloat | typing.SupportsIndex": "float",
    "collections.abc.Sequence[": "List[",
    "collections.abc.": "",
    "typing_extensions.": "",
}
_KINDS = {"int": int, "float": (int, float), "str": str, "bool": bool}


def refuse_unknown(what: str, unknown: str, known: Iterable[str]) -> None:
    """Raises InvalidArgument: `what` has no such argument; with the nearest that it has."""
    names = list(known)
    if unknown in _OF_THE_OPTIMIZER and "optimizer" in names:
        raise InvalidArgument(f"{what} has no argument '{unknown}': the optimizer has it, optimizer=millrace.AdamW(1e-3, ...)")
    said = _ELSEWHERE.get(unknown, "")
    if not said or not set(said.split(" and ")) <= set(names):
        said = next(iter(difflib.get_close_matches(unknown, names, 1, 0.0)), "")
    raise InvalidArgument(f"{what} has no argument '{unknown}'" + (f"; did you mean '{said}'?" if said else ""))


def explained(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """`function` of the compiled half, called `what`, with a sentence where its arguments do not fit."""
    own = f"{function.__name__}(): incompatible "

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except TypeError as refusal:
            if not str(refusal).startswith(own):
                raise
        _explain(what, function.__doc__ or "", arguments, keywords)

    return call


def _explain(what: str, signature: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Raises InvalidArgument: the first thing that does not fit the first line of a docstring."""
    parameters = _parameters(next((line for line in signature.splitlines() if ") -> " in line), "() -> "))
    names = [name for name, _, _ in parameters]
    for name in keywords:
        if name not in names and "**" not in signature:
            refuse_unknown(what, name, [known for known in names if known not in ("self", "arg0")])
    given = {**dict(zip(names, arguments)), **keywords}
    for name, kind, has_default in parameters:
        if name not in given and not has_default:
            raise InvalidArgument(f"{what} needs '{name}'")
        if name in given and not _fits(given[name], kind):
            value = given[name]
            raise InvalidArgument(f"{what}: {name} is {value!r:.60}, a {type(value).__name__}; expected {_in_words(kind)}")
    raise InvalidArgument(f"{what} takes ({', '.join(name for name in names if name != 'self')}), "
                          f"got {len(arguments)} arguments without a name")


def _parameters(line: str) -> list[tuple[str, str, bool]]:
    """Name, type and whether there is a default, of a signature in a docstring."""
    text = re.sub(r"'[^']*'", "''", line[line.index("(") + 1 : line.rindex(") -> ")])
    for theirs, ours in _SPELLINGS.items():
        text = text.replace(theirs, ours)
    text = re.sub(r"([\w.]+(?:\[[^|]*\])?) \| None", r"Optional[\1]", text)
    parts = re.split(r", (?=\w+: |\*)", text)
    found = [re.fullmatch(r"(\w+): (.+?)( = .*)?", part) for part in parts]
    return [(match[1], match[2], match[3] is not None) for match in found if match]


def _fits(value: Any, kind: str) -> bool:
    optional = re.fullmatch(r"Optional\[(.*)\]", kind)
    if optional:
        return value is None or _fits(value, optional[1])
    if kind in _KINDS:
        return isinstance(value, _KINDS[kind]) and (kind == "bool" or not isinstance(value, bool))
    if kind.startswith("List["):
        return not isinstance(value, str) and isinstance(value, Iterable)
    return "." not in kind or kind.rsplit(".", 1)[1] in (one.__name__ for one in type(value).__mro__)


def _in_words(kind: str) -> str:
    return kind.replace("millrace._millrace.", "millrace.")


def explain_class(kind: type) -> None:
    """The same for the constructor and the methods of a compiled class."""
    for name, member in list(vars(kind).items()):
        if name.startswith("_") and name != "__init__":
            continue
        what = kind.__name__ if name == "__init__" else f"{kind.__name__}.{name}"
        if isinstance(member, staticmethod):
            setattr(kind, name, staticmethod(explained(member.__func__, what)))
        elif type(member).__name__ == "instancemethod":
            setattr(kind, name, explained(getattr(kind, name), what))
