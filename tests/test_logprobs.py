"""Log-probs through the LM head: chunked, exact in value and gradient."""

from __future__ import annotations

import pytest
import torch

from treewise import logprobs
from treewise.logprobs import head_logprobs


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("rows_per_chunk", [1, 3, 100])
def test_p09_chunks_give_the_full_computation_and_its_gradient(
    monkeypatch: pytest.MonkeyPatch, rows_per_chunk: int, temperature: float, bias: bool
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(logprobs, "CHUNK_BYTES", 4 * 11 * rows_per_chunk)
    hidden, weight = torch.randn(7, 5, dtype=torch.float64), torch.randn(11, 5, dtype=torch.float64)
    offset = torch.randn(11, dtype=torch.float64) if bias else None
    row = torch.tensor([6, 0, 0, 3, 3, 3, 1, 6])  # rows in any order, some several times, some never
    target = torch.tensor([1, 2, 2, 0, 10, 5, 9, 4])
    upstream = torch.randn(8, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in (hidden, weight, offset) if t is not None]
    found = head_logprobs(hidden, weight, offset, row=row, target=target, temperature=temperature)
    logits = hidden @ weight.T + (0.0 if offset is None else offset)
    expected = (logits / temperature).log_softmax(-1)[row, target]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for one, two in zip(
        torch.autograd.grad((found * upstream).sum(), leaves),
        torch.autograd.grad((expected * upstream).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


def test_p08_bf16_logits_are_summed_in_float32() -> None:
    """512 equal logits: a bf16 running sum would stop at 256 and give −5.545."""
    hidden, weight = torch.zeros(1, 4, dtype=torch.bfloat16), torch.zeros(512, 4, dtype=torch.bfloat16)
    found = head_logprobs(hidden, weight, None, row=torch.tensor([0]), target=torch.tensor([3]))
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(-6.23832, abs=1e-5)
