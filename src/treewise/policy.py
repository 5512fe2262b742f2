"""The policy: a causal language model that gives the log-probs of a micro-batch's sampled tokens.

    tree path   each unique token once:   hidden [T] → predicting rows → logprobs of tree tokens → gather [A]
    flat path   one padded row a trajectory, the model's own attention: hidden [rows, L] → [A]

Both return the same `[A]` values, and autograd through the gather is the exact sum over a process
set. The tree path serves the architectures of an allow-list, after a check on this very model that
both paths agree; everything else takes the flat path.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from treewise import attention
from treewise.logprobs import entropies, head_entropies, head_logprobs
from treewise.packing import MicroBatch

# Config entries by which a model changes its logits; small logits would hide a soft cap from a comparison.
LOGIT_CHANGES = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")

Path = Literal["tree", "flat"]

# Families whose layers are all ordinary causal attention (`flat_reason` still looks at each config).
TREE_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma", "gpt2", "smollm3", "olmo2", "phi3"})


def flat_reason(config: Any) -> str | None:
    """Why a model can't use tree attention, or `None` when nothing in its config speaks against it."""
    kind = config.model_type
    if kind not in TREE_FAMILIES:
        return f"architecture {kind!r} is not on the list for tree attention"
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    if layers != {"full_attention"}:
        return f"{kind!r} has {', '.join(sorted(layers - {'full_attention'}))} layers"
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return f"{kind!r} attends within a sliding window of {config.sliding_window} tokens"
    return None


@dataclass(slots=True)
class Policy:
    """A causal language model with the settings that its log-probs depend on.

    Attributes:
        model: transformers model, or a peft model around one. Its dropout must be 0.
        temperature: of the sampling distribution, > 0.
        vocab_size: ids from here on are padding of the embedding and never predicted.
        path: `tree` or `flat`.
        reference: frozen model for the KL term; `None` with an adapter, which is switched off instead.
    """

    model: nn.Module
    temperature: float
    vocab_size: int
    path: Path = "flat"
    reference: nn.Module | None = None
    plain_head: bool = field(default=True, init=False)
    _reference_adapter: dict[str, Tensor] = field(default_factory=dict, init=False)
    _own_attention: str = field(default="sdpa", init=False)

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"training needs a sampling temperature above 0, got {self.temperature}")
        for name, module in self.model.named_modules():
            rates = [value for key, value in vars(module).items() if "drop" in key and isinstance(value, float)]
            if isinstance(module, nn.Dropout):
                rates = [module.p]
            if any(rates):
                raise ValueError(f"{name} has dropout {max(rates)}; log-probs of a policy need dropout 0")
        self._own_attention = causal_lm(self.model).config._attn_implementation
        if self.path == "tree":
            attention.register()
            self._set_attention(attention.NAME)
        self.plain_head = head_is_plain(self.model)
        if self.path == "tree" and not self.plain_head:
            raise ValueError("the model changes its logits behind the LM head; set model.attention = 'flat'")

    def _set_attention(self, name: str) -> None:
        for model in (self.model, self.reference):
            if model is not None:
                causal_lm(model).set_attn_implementation(name)

    def use_rows(self) -> None:
        """Leave the tree for the flat path, with the model's own attention."""
        self.path = "flat"
        self._set_attention(self._own_attention)

    def logprobs(self, batch: MicroBatch) -> Tensor:
        """log π of every sampled token, [A], float32 or wider, with gradient."""
        return self._score(self.model, batch)

    @torch.no_grad()
    def entropies(self, batch: MicroBatch) -> Tensor:
        """Entropy of the distribution that each sampled token was drawn from, [A] in nats."""
        return self._score(self.model, batch, entropy=True)

    @torch.no_grad()
    def reference_logprobs(self, batch: MicroBatch) -> Tensor:
        """log π_ref of every sampled token, [A]."""
        if self.reference is not None:
            return self._score(self.reference, batch)
        with (
            _adapter_swapped(self.model, self._reference_adapter)
            if self._reference_adapter
            else _adapter_off(self.model)
        ):
            return self._score(self.model, batch)

    @torch.no_grad()
    def refresh_reference(self) -> None:
        """π_ref ← π: the outer iteration of DeepSeekMath's algorithm 1 (arXiv 2402.03300)."""
        now = dict(self.model.named_parameters())
        if self.reference is None:
            self._reference_adapter = {name: p.detach().clone() for name, p in now.items() if p.requires_grad}
            return
        for name, parameter in self.reference.named_parameters():
            parameter.copy_(now[name])

    def reference_state(self) -> dict[str, Tensor]:
        """The weights of a reference that is no longer the starting model."""
        return self._reference_adapter if self.reference is None else self.reference.state_dict()

    def load_reference_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `reference_state` gave."""
        if self.reference is None:
            device = causal_lm(self.model).device
            self._reference_adapter = {name: value.to(device) for name, value in state.items()}
        else:
            self.reference.load_state_dict(state)

    def _score(self, model: nn.Module, batch: MicroBatch, *, entropy: bool = False) -> Tensor:
        path = self._tree if self.path == "tree" else self._flat
        return path(model, batch, entropy)

    def _tree(self, model: nn.Module, batch: MicroBatch, entropy: bool) -> Tensor:
        lm = causal_lm(model)
        device = lm.device
        hidden = lm.base_model(
            input_ids=_tensor(batch.tokens, device)[None],
            position_ids=_tensor(batch.position, device)[None],
            use_cache=False,
            **_tree_arguments(batch, device),
        ).last_hidden_state[0]
        # Only tokens that predict a sampled one pass through the head; siblings share their parent's row.
        nodes, node_of = np.unique(batch.index, return_inverse=True)
        rows, row_of = np.unique(batch.parent[nodes], return_inverse=True)
        picked = self._head(
            lm,
            hidden[_tensor(rows, device)],
            _tensor(row_of, device),
            _tensor(batch.tokens[nodes], device),
            entropy,
        )
        return picked[_tensor(node_of, device)]

    def _flat(self, model: nn.Module, batch: MicroBatch, entropy: bool) -> Tensor:
        lm = causal_lm(model)
        device = lm.device
        lengths = [len(row) for row in batch.transcripts]
        ids = np.zeros((len(lengths), max(lengths)), dtype=np.int64)
        for number, transcript in enumerate(batch.transcripts):
            ids[number, : len(transcript)] = transcript
        positions = np.concatenate([np.flatnonzero(sampled) for sampled in batch.sampled])
        row, before = _tensor(batch.trajectory, device), _tensor(positions - 1, device)
        targets = _tensor(batch.tokens[batch.index], device)
        # Padding stands on the right, where a causal model never looks, so it needs no mask.
        inputs = {"input_ids": _tensor(ids, device), "use_cache": False}
        if self.plain_head:
            hidden = lm.base_model(**inputs).last_hidden_state[row, before]
            return self._head(lm, hidden, torch.arange(len(row), device=device), targets, entropy)
        logits = lm(**inputs).logits[row, before, : self.vocab_size]
        wide: Tensor = logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.temperature
        return entropies(wide) if entropy else wide.log_softmax(-1).gather(-1, targets[:, None])[:, 0]

    def _head(self, lm: Any, hidden: Tensor, row: Tensor, target: Tensor, entropy: bool) -> Tensor:
        head = lm.get_output_embeddings()
        weight = head.weight[: self.vocab_size]
        bias = None if head.bias is None else head.bias[: self.vocab_size]
        if entropy:
            return head_entropies(hidden, weight, bias, temperature=self.temperature)[row]
        return head_logprobs(hidden, weight, bias, row=row, target=target, temperature=self.temperature)


def _tree_arguments(batch: MicroBatch, device: torch.device) -> dict[str, Any]:
    # Any 4-D tensor keeps transformers from building a mask of its own; ours is in the layout.
    return {"attention_mask": torch.empty(1, 1, 1, 1, device=device), "tree": attention.layout(batch.end, device)}


def _tensor(array: Any, device: torch.device) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(array), device=device)


def causal_lm(model: nn.Module) -> Any:
    """The transformers model, taken out of a peft wrapper (whose layers stay in place)."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


@contextmanager
def _adapter_off(model: nn.Module) -> Iterator[None]:
    assert hasattr(model, "disable_adapter"), "a model without an adapter needs a frozen reference"
    with model.disable_adapter():  # type: ignore[operator]
        yield


@contextmanager
def _adapter_swapped(model: nn.Module, other: dict[str, Tensor]) -> Iterator[None]:
    """The model with other values in its adapter."""
    own = {name: parameter for name, parameter in model.named_parameters() if name in other}
    before = {name: parameter.data for name, parameter in own.items()}
    for name, parameter in own.items():
        parameter.data = other[name]
    try:
        yield
    finally:
        for name, parameter in own.items():
            parameter.data = before[name]


def head_is_plain(model: nn.Module) -> bool:
    """Whether the logits are exactly the LM head of the last hidden state (no softcap, no scaling)."""
    lm = causal_lm(model)
    head = lm.get_output_embeddings()
    if type(head) is not nn.Linear or lm.base_model is lm:
        return False
    text = lm.config.get_text_config()
    if any(getattr(text, name, None) not in (None, 1.0) for name in LOGIT_CHANGES):
        return False
    ids = torch.arange(1, min(6, lm.config.get_text_config().vocab_size), device=lm.device)[None]
    with torch.no_grad():
        logits = lm(input_ids=ids, use_cache=False).logits
        expected = head(lm.base_model(input_ids=ids, use_cache=False).last_hidden_state)
    return torch.allclose(logits, expected.to(logits.dtype), rtol=1e-3, atol=1e-3)


def self_check(policy: Policy, batch: MicroBatch, *, tolerance: float) -> tuple[float, float]:
    """Compare tree and flat path on one micro-batch: log-probs, and the gradient of one loss.

    Returns:
        The largest difference of a log-prob, and the relative difference of all weights' gradient.

    Raises:
        ValueError: if either exceeds `tolerance`; the message says to use the flat path.
    """
    values, gradients = [], []
    weights = [p for p in policy.model.parameters() if p.requires_grad]
    signs = torch.where(torch.arange(len(batch.index)) % 2 == 0, 1.0, -1.0)
    original = policy.path
    for path in ("tree", "flat"):
        policy.path = path
        logprobs = policy.logprobs(batch)
        found = torch.autograd.grad((signs.to(logprobs) * logprobs).sum(), weights, allow_unused=True)
        values.append(logprobs.detach())
        gradients.append(torch.cat([g.flatten().float() for g in found if g is not None]))
    policy.path = original
    difference = (values[0] - values[1]).abs().max().item()
    relative = ((gradients[0] - gradients[1]).norm() / gradients[1].norm().clamp_min(1e-30)).item()
    if not (difference <= tolerance and relative <= tolerance):
        raise ValueError(
            f"tree attention is wrong for this model: log-probs differ by {difference:.2g} and gradients by "
            f"{relative:.2g} (relative) from one row per answer; set model.attention = 'flat'"
        )
    return difference, relative
