"""Settings of the whole suite: reproducible hypothesis, one thread, warnings are errors."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import hypothesis
import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "scripts"))  # the golden files' makers
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test asks a hub; the built-in model comes from the package index
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# The same examples on every run; a time limit per example would only measure how busy the machine is.
hypothesis.settings.register_profile("treewise", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("treewise")


def pytest_configure(config: pytest.Config) -> None:
    """Make warnings errors, but those that other people's packages give about themselves."""
    for line in (
        "error",
        "ignore::DeprecationWarning:(?!treewise)",
        "ignore::FutureWarning:(?!treewise)",
        "ignore::ImportWarning",
    ):
        config.addinivalue_line("filterwarnings", line)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Threads cost more than they save on tensors of this size, and results don't depend on their number."""
    import torch

    torch.set_num_threads(1)
