"""Language models of Hugging Face's transformers as pipelines: from_transformers().

A stage is the model's own forward pass over a part of its layers: it makes masks, positions and rotary
embeddings from what crosses, as the whole model does, in whichever release of transformers.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad

from ..errors import InvalidArgument
from .loss import LossRule, UnitLoss
from .partition import Split, boundaries
from .optimizers import OptimizerOf
from .pipeline import Pipeline

_CAUSAL = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM", "GPT2LMHeadModel")
_SUPPORTED = (*_CAUSAL, "BertForMaskedLM")
# Of models without base_model_pp_plan: embeddings, the list of layers, what follows it.
_BY_NAME = {"gpt2": (("wte", "wpe", "drop"), "h", ("ln_f",)), "bert": (("embeddings",), "encoder.layer", ())}
_IGNORED = -100  # a label that does not count


def from_transformers(model: nn.Module, *, optimizer: OptimizerOf, split: Split = "parameters", **options: Any) -> Pipeline:
    """A Pipeline of a language model of transformers, or of PEFT around one: Llama, Qwen 2 and 3, Mistral,
    GPT-2, BERT.

        >>> pipeline = millrace.torch.from_transformers(
        ...     model, optimizer=torch.optim.AdamW(model.parameters(), 1e-4), ranks=4, micro_batches=8)
        >>> pipeline.step({"input_ids": ids, "attention_mask": mask, "labels": labels})

    - A step takes the model's arguments by name; labels among them, or as `targets`. They are shifted for
      causal models; -100 does not count. The loss is (sum over labels) / (labels that count), in f32.
      Outputs have the bits of model(..., use_cache=False).
    - `split`: "parameters", "even", or boundaries, among embeddings, layers, and head as one each.
    - `options`: of Pipeline. Gradient checkpointing of the model is turned off and becomes `recompute`.

    The model keeps its parameters: state_dict() has its names, and model.save_pretrained() saves what was
    trained; under `millrace launch`, with `state_dict=pipeline.state_dict()`.
    """
    inner = _language_model(model)
    options = {"loss": TokenLoss(shifts=_name_of(inner) in _CAUSAL), "tie": True, **options}
    options["recompute"] = _checkpointing_taken_off(inner) or options.get("recompute", False)
    return Pipeline(model, optimizer=optimizer, split=lambda stages: _stages(inner, split, stages), **options)


class TokenLoss(LossRule):
    """Cross-entropy over all labels but -100. Each weighs one. `shifts`: a place predicts the next one's."""

    labels = "labels"

    def __init__(self, shifts: bool) -> None:
        super().__init__(self._sum, lambda labels: (self._targets(labels) != _IGNORED).sum())
        self._shifts, self._is_checked = shifts, True

    def of_unit(self, outputs: Any, targets: Any, weight: float) -> UnitLoss:
        loss = super().of_unit(outputs, targets, weight)
        if not torch.is_grad_enabled():
            loss.right, loss.evaluated = (outputs.argmax(-1) == self._targets(targets)).sum(), weight
        return loss

    def _targets(self, labels: torch.Tensor) -> torch.Tensor:
        return pad(labels, (0, 1), value=_IGNORED)[..., 1:] if self._shifts else labels

    def _sum(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(logits.float().flatten(0, -2), self._targets(labels).flatten(), ignore_index=_IGNORED,
                             reduction="sum")


class _FirstStage(nn.Module):
    """The embeddings and first layers; with a head, the whole model."""

    def __init__(self, base: nn.Module, head: nn.Module | None) -> None:
        super().__init__()
        self.base, self.head = base, head

    def forward(self, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None,
                token_type_ids: Any = None, inputs_embeds: Any = None) -> Any:
        return self._of(attention_mask, position_ids, input_ids=input_ids, token_type_ids=token_type_ids,
                        inputs_embeds=inputs_embeds)

    def _of(self, mask: Any, positions: Any, **named: Any) -> Any:
        named.update(attention_mask=mask, position_ids=positions)
        hidden = self.base(**{name: one for name, one in named.items() if one is not None}, use_cache=False)[0]
        return self.head(hidden) if self.head is not None else (hidden, mask, positions)


class _NextStage(_FirstStage):
    """Layers after the first stage's: what crosses is hidden states, the mask of tokens and positions."""

    def forward(self, hidden: torch.Tensor, mask: Any, positions: Any) -> Any:  # type: ignore[override]
        mask = mask if mask is None else mask.detach()  # a recomputed stage may say that it wants a gradient
        return self._of(mask, positions, inputs_embeds=hidden)


class _Embedded(nn.Module):
    """In the place of embeddings that an earlier stage has added."""

    def forward(self, inputs_embeds: torch.Tensor, **_: Any) -> torch.Tensor:
        return inputs_embeds


class _NoPositions(nn.Module):
    """In the place of position embeddings that an earlier stage has added: x + -0.0 has the bits of x."""

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return torch.tensor(-0.0, device=positions.device)


# In the place of embeddings; else nothing is, because the base model is given inputs_embeds.
_INSTEAD = {"wpe": _NoPositions, "drop": nn.Identity, "embeddings": _Embedded}


def _name_of(model: nn.Module) -> str:
    """The class of the model that is supported; of a user's subclass that of its parent."""
    return next((one.__name__ for one in type(model).__mro__ if one.__name__ in _SUPPORTED), "")


def _language_model(model: Any) -> Any:
    """Inside PEFT's wrapper, which has put its adapters into the layers."""
    config = getattr(model, "active_peft_config", None)
    if config is not None and getattr(config, "is_prompt_learning", False):
        raise InvalidArgument(f"PEFT {type(config).__name__}: must be a method with weights inside layers, as LoRA")
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not _name_of(inner):
        raise InvalidArgument(f"model {type(inner).__name__}: must be {', '.join(_SUPPORTED)}; for any other model give "
                              "Pipeline a list of modules, one per stage")
    return inner


def _checkpointing_taken_off(model: nn.Module) -> bool:
    """Whether layers were to compute their activations again; from now on the pipeline does."""
    owners = [one for one in model.modules() if getattr(one, "gradient_checkpointing", False)]
    for one in owners:
        one.gradient_checkpointing = False
    return bool(owners)


def _parts(model: Any) -> tuple[list[str], str, list[str]]:
    """Names in the base model: of the embeddings, the list of layers, and what follows it."""
    plan = getattr(model.config, "base_model_pp_plan", None)
    if plan is None:
        first, layers, last = _BY_NAME[model.config.model_type]
        return list(first), layers, list(last)
    names = list(plan)
    at = next(at for at, name in enumerate(names) if isinstance(model.base_model.get_submodule(name), nn.ModuleList))
    return names[:at], names[at], names[at + 1 :]


def _stages(model: Any, split: Split, stages: int) -> list[nn.Module]:
    """Units are the embeddings, each layer, and the head with what precedes it."""
    base = model.base_model
    first, layers, last = _parts(model)
    head = next(one for name, one in model.named_children() if name != model.base_model_prefix)
    blocks = list(base.get_submodule(layers))
    units = [nn.ModuleList(map(base.get_submodule, first)), *blocks,
             nn.ModuleList([*map(base.get_submodule, last), head])]
    ends = boundaries(units, split, stages)
    made: list[nn.Module] = []
    for number, (begin, end) in enumerate(zip(ends, ends[1:])):
        part = _part(base, layers, max(begin - 1, 0), min(end - 1, len(blocks)))
        for name in first if number > 0 else ():
            part._modules[name] = _INSTEAD[name]() if name in _INSTEAD else None
        for name in last if number + 1 < stages else ():
            part._modules[name] = nn.Identity()
        made.append((_NextStage if number else _FirstStage)(part, head if number + 1 == stages else None))
    return made


def _part(base: Any, layers: str, begin: int, end: int) -> Any:
    """The base model with some of its layers: another module and configuration, the same layers."""
    part = _shallow(base)
    part.config = copy.copy(base.config)  # a forward pass of transformers writes into it
    if getattr(base.config, "layer_types", None) is not None:
        part.config.__dict__["layer_types"] = base.config.layer_types[begin:end]
    owner = part
    *path, name = layers.split(".")
    for step in path:
        inside = owner._modules[step] = _shallow(owner._modules[step])
        owner = inside
    owner._modules[name] = nn.ModuleList(list(owner._modules[name])[begin:end])
    if "rotary_emb" in part._modules:
        part._modules["rotary_emb"] = copy.deepcopy(base.rotary_emb)  # some kinds write into their buffers
    return part


def _shallow(module: Any) -> Any:
    """Another module with the same submodules, which may be replaced."""
    other = copy.copy(module)
    other.__dict__["_modules"] = dict(module._modules)
    return other
