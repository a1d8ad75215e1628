"""`jeton completion`: a script with which a shell completes commands, options and file names."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from jeton.cli.command import FINE, BuiltIn

_FILES: Final = ("PATH", "MODULE:FLOW")
"""Arguments that are completed with names of files."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="the shell to complete in")


def _run(options: argparse.Namespace) -> int:
    import shtab

    from jeton.cli import make_parser

    parser = make_parser()
    for action in _actions(parser):
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=options.shell))
    return FINE


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)


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
