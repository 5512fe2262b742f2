"""The paper's claims as commands: `treewise reproduce NAME` (arXiv 2509.21154).

    options ──cells──▶ cell, cell, … ──measure, in worker processes──▶ rows ──report──▶ tables and a picture

An experiment is a module with three functions, named like its command, and its options in `options.py`; what runs and
records it is `engine.py`.
"""
