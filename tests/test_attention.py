"""The tree's mask in its two forms: rectangles (CPU) and a FlexAttention mask (CUDA), here both on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tiny import model as tiny_model
from treewise import attention, policy
from treewise.axes import Objective
from treewise.credit import credit
from treewise.packing import MicroBatch, pack
from treewise.policy import Policy, self_check
from treewise.recipe import make_recipe
from treewise.session import _probe_group, build_policy


def batch() -> MicroBatch:
    return pack(credit([_probe_group(40)], Objective()), denominator=1.0, budget=1000)[0]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "smollm3", "olmo2", "phi3"])
def test_the_mask_for_cuda_gives_the_log_probs_of_the_rectangles(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention runs on the CPU without compilation and without a backward pass: enough to prove the mask."""
    chosen = Policy(tiny_model(family, dtype=torch.float32), 1.0, 40, path="tree")
    with torch.no_grad():
        rectangles = chosen.logprobs(batch())
        monkeypatch.setattr(
            policy.attention,
            "layout",
            lambda end, device: attention.TreeLayout((), attention.block_mask(torch.as_tensor(end))),
        )
        flex = chosen.logprobs(batch())
    torch.testing.assert_close(flex, rectangles, rtol=1e-4, atol=1e-4)


def test_rectangles_cover_exactly_the_mask_and_nothing_twice() -> None:
    end = batch().end
    covered = np.zeros((len(end), len(end)), dtype=int)
    for row, row_end, column, column_end, causal in attention.rectangles(end):
        block = np.ones((row_end - row, column_end - column), dtype=int)
        covered[row:row_end, column:column_end] += np.tril(block) if causal else block
    query, key = np.mgrid[: len(end), : len(end)]
    assert (covered == ((key <= query) & (query < end[key]))).all()


def test_the_check_looks_at_every_weight_and_sees_a_wrong_gradient_of_an_adapter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fresh adapter's A matrices have gradient 0: looking at the first weight only would prove nothing."""
    peft = pytest.importorskip("peft")
    adapter = peft.LoraConfig(r=2, target_modules="all-linear")
    adapted = peft.get_peft_model(tiny_model("llama", dtype=torch.float32), adapter)
    chosen = Policy(adapted, 1.0, 40, path="tree")
    assert max(self_check(chosen, batch(), tolerance=1e-3)) < 1e-3
    nothing = lambda ctx, grad: (*(torch.zeros_like(t) for t in ctx.saved_tensors[:3]), None, None)  # noqa: E731
    monkeypatch.setattr(attention._Rectangles, "backward", staticmethod(nothing))
    with pytest.raises(ValueError, match="tree attention is wrong for this model"):
        self_check(chosen, batch(), tolerance=1e-3)


def test_a_listed_family_with_another_head_takes_rows_unless_the_tree_was_asked_for() -> None:
    class Scaled(torch.nn.Linear):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return 2.0 * super().forward(hidden)

    model = tiny_model("llama", dtype=torch.float32)
    model.lm_head.__class__ = Scaled
    chosen, note = build_policy(make_recipe({}), Objective(), model, 40)
    assert chosen.path == "flat"
    assert "changes its logits behind the LM head" in note
    with pytest.raises(ValueError, match="'tree' is not possible: the model changes its logits"):
        build_policy(make_recipe({}, {"model.attention": "tree"}), Objective(), model, 40)
