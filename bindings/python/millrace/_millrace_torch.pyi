# What the compiled half of millrace.torch has.
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

from torch import Tensor

class TorchStage:
    def __init__(
        self,
        *,
        forward: Callable[..., list[Tensor]],
        loss: Callable[[list[Tensor], list[Tensor]], tuple[Tensor, float, int, int]] | None,
        parameters: Sequence[tuple[str, Tensor]],
        buffers: Sequence[tuple[str, Tensor]],
        number: int,
        precision: Literal["f32", "bf16"],
        seeds: bool,
    ) -> None: ...
    def __millrace_stage__(self) -> Any: ...

def fields() -> list[tuple[str, str]]: ...
@overload
def boundaries(layers: int, stages: int) -> list[int]: ...
@overload
def boundaries(costs: Sequence[float], stages: int) -> list[int]: ...
def check_boundaries(boundaries: Sequence[int], layers: int) -> None: ...
def dropout(x: Tensor, rate: float, layer: int) -> Tensor: ...
