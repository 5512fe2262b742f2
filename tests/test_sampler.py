"""The in-process sampler against the model itself: no cache, one row at a time, and `generate`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedConfig

import tiny
from treewise import attention
from treewise.sampler import Request
from treewise.sampler.draw import draw, hits_stop, inverse_cdf
from treewise.sampler.hf import HFSampler, max_length, sampling_mode
from treewise.types import Completion, Sampling

END = frozenset({1, 2, 3})
REAL = tiny.VOCABULARY - 2  # the last two ids play the padding of the vocabulary

_rng = np.random.default_rng(0)
PREFIXES = [_rng.integers(4, REAL, length) for length in (3, 11, 7, 1, 7)]


def requests(count: int = 15, run: int = 1) -> list[Request]:
    return [Request(PREFIXES[number % len(PREFIXES)], (run, number)) for number in range(count)]


def sampler(model: nn.Module, max_rows: int = 64, end_ids: frozenset[int] = END, vocab_size: int = REAL) -> HFSampler:
    return HFSampler(model, end_ids=end_ids, vocab_size=vocab_size, decode=letters, max_rows=max_rows)


def letters(ids: object) -> str:
    """Token 4 is "a", 5 is "b", …; ids below 4 have no text."""
    return "".join(chr(93 + number) for number in ids if number >= 4)  # type: ignore[attr-defined]


def reference(model: nn.Module, prefix: np.ndarray, tokens: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Log-probs of `tokens` by one forward without a cache, the softmax over the real vocabulary."""
    ids = torch.tensor(np.concatenate([prefix, tokens]))[None]
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prefix) - 1 : -1, :REAL]
    logprobs = (logits.double() / temperature).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()


def error(model: nn.Module, asked: list[Request], got: list[Completion], temperature: float = 1.0) -> float:
    pairs = zip(asked, got, strict=True)
    return max(np.abs(c.logprobs - reference(model, r.prefix, c.tokens, temperature)).max() for r, c in pairs)


def tokens(completions: list[Completion]) -> list[list[int]]:
    return [completion.tokens.tolist() for completion in completions]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_logprobs_are_those_of_a_forward_without_cache_and_greedy_is_generate(family: str) -> None:
    model = tiny.model(family, dtype=torch.float32)
    own = sampler(model)
    asked = requests()
    got = own.sample(asked, Sampling(max_new_tokens=12))
    assert len({len(completion.tokens) for completion in got}) > 2  # rows end at different times
    assert error(model, asked, got) < 1e-4
    greedy = own.sample(requests(5), Sampling(max_new_tokens=12, temperature=0.0))
    for prefix, completion in zip(PREFIXES, greedy, strict=True):
        ids = torch.tensor(prefix)[None]
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=12,
            eos_token_id=sorted(END),
            suppress_tokens=[REAL, REAL + 1],
        )
        assert completion.tokens.tolist() == expected[0, len(prefix) :].tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_of_a_float64_model_are_exact(temperature: float) -> None:
    model = tiny.model("gpt2", dtype=torch.float64)
    got = sampler(model).sample(requests(), Sampling(max_new_tokens=20, temperature=temperature))
    assert error(model, requests(), got, temperature) < 1e-9


def test_a_bf16_model_is_sampled_from_its_upcast_logits() -> None:
    model = tiny.model("llama", dtype=torch.bfloat16)
    got = sampler(model).sample(requests(), Sampling(max_new_tokens=12))
    assert error(model, requests(), got) < 0.5
    assert len({value for completion in got for value in completion.logprobs}) > 100  # not rounded to bf16


@pytest.mark.parametrize("family", ["gemma2", "lfm2"])
@pytest.mark.parametrize("max_rows", [1, 4])
def test_completions_do_not_depend_on_the_batch(family: str, max_rows: int) -> None:
    model = tiny.model(family, dtype=torch.float32)
    asked = requests()
    together = sampler(model).sample(asked, Sampling(max_new_tokens=12))
    shuffled = sampler(model, max_rows).sample(asked[::-1], Sampling(max_new_tokens=12))[::-1]
    assert tokens(together) == tokens(shuffled)
    for one, other in zip(together, shuffled, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


def test_a_long_prefill_is_cut_without_changing_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model("gemma3", dtype=torch.float32)
    whole = sampler(model).sample(requests(), Sampling(max_new_tokens=12))
    monkeypatch.setattr("treewise.sampler.batch.PREFILL_TOKENS", 17)
    cut = sampler(model).sample(requests(), Sampling(max_new_tokens=12))
    assert tokens(whole) == tokens(cut)


def test_a_prefix_is_prefilled_once_per_chunk() -> None:
    model = tiny.model("llama", dtype=torch.float32)
    own = sampler(model)
    seen = []
    model.register_forward_pre_hook(lambda _, __, inputs: seen.append(inputs["input_ids"].shape), with_kwargs=True)
    own.sample(requests(40), Sampling(max_new_tokens=2))
    assert seen[0] == (len(PREFIXES), 11)
    assert len(seen) == 2


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("room", [16_384, 17])
def test_what_all_prefixes_begin_with_is_computed_once(family: str, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows whose own part is longer or shorter than the padding, one that is nothing but the shared part."""
    monkeypatch.setattr("treewise.sampler.batch.PREFILL_TOKENS", room)
    model = tiny.model(family, dtype=torch.float32)
    own = sampler(model)
    shared = _rng.integers(4, REAL, 20)
    prefixes = [np.concatenate([shared, PREFIXES[1][:length]]) for length in (0, 1, 4, 11)]
    prefixes.append(np.concatenate([shared, PREFIXES[2], PREFIXES[1], PREFIXES[4]]))
    computed = 0

    def count(_: object, __: object, inputs: dict[str, torch.Tensor]) -> None:
        nonlocal computed
        computed += inputs["input_ids"].numel()

    hook = model.register_forward_pre_hook(count, with_kwargs=True)
    asked = [Request(prefix, (3, number)) for prefix in prefixes for number in range(3)]
    got = own.sample(asked, Sampling(max_new_tokens=1))
    hook.remove()
    width, ragged = len(prefixes[-1]), own._cached.ragged
    assert computed == (20 + 5 * (width - 20) if ragged else sum(map(len, prefixes)))
    assert error(model, asked, got) < 1e-4
    longer = own.sample(asked, Sampling(max_new_tokens=8))
    assert error(model, asked, longer) < 1e-4


def test_a_prefix_that_is_nothing_but_the_shared_part_is_continued() -> None:
    """The shared part is a whole row's prefix, and the longest has one token more."""
    model = tiny.model("llama", dtype=torch.float32)
    stem = _rng.integers(4, REAL, 18)
    asked = [Request(stem, (1,)), Request(np.append(stem, 7), (2,))]
    assert error(model, asked, sampler(model).sample(asked, Sampling(max_new_tokens=6))) < 1e-4


def test_seeds_decide_the_tokens() -> None:
    own = sampler(tiny.model("llama", dtype=torch.float32))
    first = tokens(own.sample(requests(run=1), Sampling(max_new_tokens=8)))
    assert first == tokens(own.sample(requests(run=1), Sampling(max_new_tokens=8)))
    assert first != tokens(own.sample(requests(run=2), Sampling(max_new_tokens=8)))
    group = [Request(PREFIXES[0], (1, 0, number)) for number in range(8)]
    assert len({tuple(row) for row in tokens(own.sample(group, Sampling(max_new_tokens=8)))}) > 1


def test_draws_follow_the_tempered_softmax() -> None:
    logits = torch.tensor([2.0, 0.5, -1.0, 0.0, 1.0, -0.5], dtype=torch.bfloat16)
    count = 20_000
    uniforms = torch.tensor(np.random.default_rng(0).random(count))
    drawn, logprobs = draw(logits.expand(count, -1), uniforms, 0.7)
    expected = (logits.float() / 0.7).softmax(-1)
    observed = torch.bincount(drawn, minlength=6)
    chi_square = ((observed - count * expected) ** 2 / (count * expected)).sum().item()
    assert chi_square < 20.5  # 5 degrees of freedom, p = 0.001
    np.testing.assert_allclose(logprobs, expected[drawn].log(), atol=1e-6)


def test_sampled_completions_follow_the_model() -> None:
    model = tiny.model("gpt2", dtype=torch.float32)
    group = [Request(PREFIXES[0], (7, number)) for number in range(4000)]
    got = sampler(model, max_rows=1000).sample(group, Sampling(max_new_tokens=1))
    counts = np.bincount([completion.tokens[0] for completion in got], minlength=REAL)
    expected = np.exp([reference(model, PREFIXES[0], np.array([token]))[0] for token in range(REAL)]) * len(group)
    common = expected > 5
    chi_square = ((counts - expected) ** 2 / expected)[common].sum()
    assert chi_square < common.sum() + 4 * np.sqrt(2 * common.sum())
    assert counts[~common].sum() <= expected[~common].sum() + 4 * np.sqrt(expected[~common].sum()) + 1


@pytest.mark.parametrize("size", [1, 7, 255, 256, 257, 1000])
def test_inverse_cdf_is_the_running_sum(size: int) -> None:
    weights = torch.randn(200, size, generator=torch.Generator().manual_seed(size)).mul(3).softmax(-1)
    uniforms = torch.tensor(np.random.default_rng(size).random(200))
    running = weights.double().cumsum(-1)
    expected = (running <= uniforms[:, None] * running[:, -1:]).sum(-1)
    assert torch.equal(inverse_cdf(weights, uniforms), expected)


def test_what_has_no_probability_is_never_drawn() -> None:
    weights = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0]).expand(4, -1)
    uniforms = torch.tensor(np.array([0.0, 0.25, 0.2499, np.nextafter(1, 0)]))
    assert inverse_cdf(weights, uniforms).tolist() == [1, 3, 1, 3]


def test_p08_log_softmax_is_in_float32() -> None:
    _, equal = draw(torch.zeros(1, 512, dtype=torch.bfloat16), torch.tensor([0.5], dtype=torch.float64), 1.0)
    assert equal.item() == pytest.approx(-6.23832, abs=1e-5)
    _, close = draw(torch.tensor([[20.03, 19.97, 10.0]]), torch.zeros(1, dtype=torch.float64), 1.0)
    assert close.item() == pytest.approx(-0.66362, abs=1e-5)


def test_p02_temperature_0_is_greedy_with_untempered_logprobs() -> None:
    model = tiny.model("llama", dtype=torch.float32)
    got = sampler(model).sample(requests(5), Sampling(max_new_tokens=6, temperature=0.0))
    assert error(model, requests(5), got) < 1e-4
    almost = sampler(model).sample(requests(5), Sampling(max_new_tokens=6, temperature=1e-4))
    assert tokens(almost) == tokens(got)


def test_m03_m05_any_end_id_ends_a_completion_and_belongs_to_it() -> None:
    model = tiny.model("llama", dtype=torch.float32)
    free = sampler(model, end_ids=frozenset()).sample(requests(), Sampling(max_new_tokens=12))
    assert {(len(c.tokens), c.stop_reason) for c in free} == {(12, "length")}
    ends = frozenset({free[0].tokens[0], free[1].tokens[4], free[2].tokens[-1]})
    got = sampler(model, end_ids=ends).sample(requests(), Sampling(max_new_tokens=12))
    for completion, whole in zip(got, free, strict=True):
        hits = [place for place, token in enumerate(whole.tokens) if token in ends]
        assert completion.tokens.tolist() == whole.tokens[: hits[0] + 1 if hits else None].tolist()
        assert len(completion.logprobs) == len(completion.tokens)
        assert completion.stop_reason == ("eos" if hits else "length")
    assert len(got[0].tokens) == 1


def test_e02_a_stop_string_ends_the_completion_that_generates_it() -> None:
    model = tiny.model("llama", dtype=torch.float32)
    own = sampler(model, end_ids=frozenset())
    free = own.sample(requests(), Sampling(max_new_tokens=12))
    stop = (letters(free[0].tokens[4:6]), letters(free[1].tokens[7:10]))
    got = own.sample(requests(), Sampling(max_new_tokens=12, stop=stop))
    for completion, whole in zip(got, free, strict=True):
        length = next((n for n in range(13) if any(s in letters(whole.tokens[:n]) for s in stop)), None)
        assert completion.tokens.tolist() == whole.tokens[:length].tolist()
        assert completion.stop_reason == ("length" if length is None else "stop")
    prompted = Request(np.array([ord(letter) - 93 for letter in stop[0]]), (1,))
    assert own.sample([prompted], Sampling(max_new_tokens=1, stop=stop))[0].stop_reason == "length"


def test_a_stop_string_is_found_behind_tokens_without_text() -> None:
    ids = [4, *[0] * 500, 5]
    assert hits_stop(ids, ("ab",), letters)
    assert not hits_stop(ids, ("ac", "b\n\nQuestion:"), letters)
    assert hits_stop([*[9] * 1000, 4, 5], ("ab",), letters)


@pytest.mark.parametrize(
    ("filters", "options"),
    [
        ({"top_k": 3}, {"top_k": 3}),
        ({"top_p": 0.5}, {"top_p": 0.5}),
        ({"min_p": 0.3}, {"min_p": 0.3}),
    ],
)
def test_filters_leave_only_what_transformers_leaves(filters: dict[str, float], options: dict[str, float]) -> None:
    model = tiny.model("llama", dtype=torch.float32)
    group = [Request(PREFIXES[1], (number,)) for number in range(300)]
    got = sampler(model, max_rows=300).sample(group, Sampling(max_new_tokens=1, temperature=0.8, **filters))
    drawn = {int(completion.tokens[0]) for completion in got}
    torch.manual_seed(0)
    expected = model.generate(
        torch.tensor(PREFIXES[1])[None].expand(300, -1),
        attention_mask=torch.ones(300, len(PREFIXES[1])),
        do_sample=True,
        temperature=0.8,
        max_new_tokens=1,
        suppress_tokens=[REAL, REAL + 1],
        **{"top_k": 0, **options},
    )
    assert drawn == set(expected[:, -1].tolist())
    assert error(model, group, got, 0.8) < 1e-4  # of the plain tempered softmax


def test_the_repetition_penalty_sees_each_rows_own_tokens_only() -> None:
    model = tiny.model("llama", dtype=torch.float32)
    setting = Sampling(max_new_tokens=12, temperature=0.0, repetition_penalty=1.7)
    together = sampler(model).sample(requests(5), setting)
    for prefix, completion in zip(PREFIXES, together, strict=True):
        ids = torch.tensor(prefix)[None]
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            repetition_penalty=1.7,
            max_new_tokens=12,
            eos_token_id=sorted(END),
            suppress_tokens=[REAL, REAL + 1],
        )
        assert completion.tokens.tolist() == expected[0, len(prefix) :].tolist()


def test_generation_config_is_ignored() -> None:
    model = tiny.model("llama", dtype=torch.float32)
    plain = tokens(sampler(model).sample(requests(), Sampling(max_new_tokens=8)))
    for name, value in {"temperature": 0.1, "top_k": 1, "eos_token_id": 9, "max_length": 3}.items():
        setattr(model.generation_config, name, value)
    assert tokens(sampler(model).sample(requests(), Sampling(max_new_tokens=8))) == plain


def test_a_training_model_with_checkpointing_and_tree_attention_is_sampled_and_left_as_it_was() -> None:
    model = tiny.model("llama", dtype=torch.float32, attention_dropout=0.5)
    plain = tokens(sampler(model).sample(requests(), Sampling(max_new_tokens=8)))
    attention.register()
    model.set_attn_implementation(attention.NAME)
    model.train()
    model.gradient_checkpointing_enable()
    model.model.norm.eval()
    before = {name: module.training for name, module in model.named_modules()}
    assert tokens(sampler(model).sample(requests(), Sampling(max_new_tokens=8))) == plain
    assert {name: module.training for name, module in model.named_modules()} == before
    assert model.config._attn_implementation == attention.NAME
    model.set_attn_implementation("sdpa")
    model(input_ids=torch.tensor([[4, 5, 6]])).logits.sum().backward()


def test_the_mode_is_restored_when_sampling_fails() -> None:
    model = tiny.model("gpt2", dtype=torch.float32).train()
    with pytest.raises(RuntimeError), sampling_mode(model):
        raise RuntimeError
    assert model.training
    assert torch.is_grad_enabled()


def test_a_shared_policy_is_seen_at_once_and_another_is_copied() -> None:
    policy = tiny.model("llama", dtype=torch.float32)
    shared, apart = sampler(policy), sampler(tiny.model("llama", dtype=torch.float32))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.1)
    stale = apart.sample(requests(), Sampling(max_new_tokens=8))
    assert {completion.version for completion in stale} == {0}
    assert error(policy, requests(), stale) > 1e-2
    for own in (shared, apart):
        own.sync(policy, 3)
        fresh = own.sample(requests(), Sampling(max_new_tokens=8))
        assert {completion.version for completion in fresh} == {3}
        assert error(policy, requests(), fresh) < 1e-4


def test_weights_of_another_architecture_are_refused() -> None:
    own = sampler(tiny.model("llama", dtype=torch.float32))
    with pytest.raises(ValueError, match="one architecture"):
        own.sync(tiny.model("llama", dtype=torch.float32, tie_word_embeddings=True), 1)
    with pytest.raises(ValueError, match="one architecture"):
        own.sync(tiny.model("llama", dtype=torch.float32, intermediate_size=32), 1)


def test_an_adapter_is_sampled_with_its_weights() -> None:
    peft = pytest.importorskip("peft")
    base = tiny.model("llama", dtype=torch.float32)
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    own = sampler(model)
    own.sync(model, 1)
    assert error(model, requests(), own.sample(requests(), Sampling(max_new_tokens=8))) < 1e-4


class OutsideState(nn.Module):
    """Keeps the last token of each row outside of the cache, as some recurrent models do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.config = model, model.config
        self.last = torch.zeros(1, 1, 1)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def forward(self, input_ids, cache=None, position_ids=None, attention_mask=None, **options):  # type: ignore[no-untyped-def]
        output = self.model(
            input_ids=input_ids,
            cache=cache,
            position_ids=position_ids,
            attention_mask=attention_mask,
            **options,
        )
        logits = output.logits[:, -1:]
        if self.last.shape == logits.shape:
            output.logits = logits + 0.1 * self.last
        self.last = logits
        return output


def test_a_model_that_its_cache_does_not_describe_is_refused() -> None:
    with pytest.raises(ValueError, match="total variation"):
        sampler(OutsideState(tiny.model("llama", dtype=torch.float32)))
    with pytest.raises(ValueError, match="takes no cache"):
        sampler(nn.Linear(1, 1))


def test_longrope_is_sampled_within_its_original_length() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.0], "long_factor": [2.0, 2.0]}
    assert max_length(tiny.config("phi3", rope_parameters=rope, original_max_position_embeddings=16)) == 16
    assert max_length(tiny.config("gpt2")) == 64
    assert max_length(PreTrainedConfig()) is None


@pytest.mark.parametrize(
    ("prefix", "setting", "message"),
    [
        ([], {}, "empty prefix"),
        ([5] * 60, {"max_new_tokens": 5}, "64 positions"),
        ([5], {"stop": "Question"}, "tuple of strings"),
        ([5], {"stop": ("",)}, "stop string is empty"),
        ([5], {"temperature": -1.0}, "temperature is -1.0"),
        ([5], {"temperature": float("nan")}, "temperature is nan"),
        ([5], {"top_p": 1.5}, "top_p is 1.5"),
        ([5], {"max_new_tokens": -1}, "max_new_tokens is -1"),
        ([5], {"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
    ],
)
def test_what_can_not_be_sampled_is_refused(prefix: list[int], setting: dict, message: str) -> None:
    own = sampler(tiny.model("gpt2", dtype=torch.float32))
    with pytest.raises(ValueError, match=message):
        own.sample([Request(np.array(prefix, dtype=np.int64), (0,))], Sampling(**{"max_new_tokens": 4, **setting}))


def test_the_last_position_can_be_sampled() -> None:
    own = sampler(tiny.model("gpt2", dtype=torch.float32), end_ids=frozenset())
    got = own.sample([Request(np.full(60, 5), (0,))], Sampling(max_new_tokens=4))
    assert (len(got[0].tokens), got[0].stop_reason) == (4, "length")


def test_no_new_tokens_give_empty_completions_and_no_requests_none() -> None:
    own = sampler(tiny.model("gpt2", dtype=torch.float32))
    got = own.sample(requests(2), Sampling(max_new_tokens=0))
    assert [(c.tokens.tolist(), c.logprobs.tolist(), c.stop_reason) for c in got] == [([], [], "length")] * 2
    assert own.sample([], Sampling(max_new_tokens=4)) == []


def test_diverged_weights_are_reported() -> None:
    model = tiny.model("gpt2", dtype=torch.float32)
    own = sampler(model)
    with torch.no_grad():
        model.transformer.ln_f.weight.fill_(float("nan"))
    for temperature in (0.0, 1.0):
        with pytest.raises(ValueError, match="not finite"):
            own.sample(requests(2), Sampling(max_new_tokens=4, temperature=temperature))
