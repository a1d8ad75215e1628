"""`jeton completion`: a script with which a shell completes commands, options and file names."""

from __future__ import annotations

import argparse
from typing import Final

from jeton.cli.command import FINE, BuiltIn


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="the shell to complete in")


def _run(options: argparse.Namespace) -> int:
    import shtab

    from jeton.cli import make_parser

    print(shtab.complete(make_parser(), shell=options.shell))
    return FINE


COMMAND: Final = BuiltIn(
    "completion",
    "print a script that completes commands in a shell",
    "Print a script that makes a shell complete the commands and options of `jeton`.",
    "\n".join(
        (
            "jeton completion bash > ~/.local/share/bash-completion/completions/jeton",
            "jeton completion zsh > ~/.zfunc/_jeton      # a folder of $fpath",
            "jeton completion fish > ~/.config/fish/completions/jeton.fish",
        )
    ),
    _add_arguments,
    _run,
)
