"""Modules of PyTorch through any schedule, with the bits of a plain loop.

    >>> import millrace.torch
    >>> pipeline = millrace.torch.Pipeline(
    ...     model, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.AdamW(model.parameters(), 3e-3),
    ...     ranks=4, micro_batches=8, schedule="zb-h1")
    >>> pipeline.step(inputs, targets).mean_loss

Needs PyTorch 2.6 or later; `import millrace` alone does not.
"""

try:
    import torch as _torch
except ImportError as _missing:
    raise ImportError("millrace.torch needs PyTorch 2.6 or later (pip install torch)") from _missing

from .. import launch as _launch

if tuple(int(_part) for _part in _torch.__version__.split("+")[0].split(".")[:2]) < (2, 6):
    raise ImportError(f"torch {_torch.__version__}: millrace.torch needs 2.6 or later")

# What decides bits, and has to be the same in all processes of a launch.
_launch.compared["torch"] = _torch.__version__
_launch.compared["torch cpu"] = _torch.backends.cpu.get_cpu_capability()
_launch.action_timeout = 60.0  # a module may compile at its first pass

from .draws import seed
from .pipeline import Pipeline
from .profile import profile

__all__ = ["Pipeline", "from_transformers", "profile", "seed"]


def __getattr__(name: str) -> object:
    """from_transformers() is imported when it is asked for."""
    if name == "from_transformers":
        from .hugging_face import from_transformers

        return from_transformers
    raise AttributeError(f"module 'millrace.torch' has no attribute '{name}'")
