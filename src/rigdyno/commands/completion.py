"""`rigdyno completion`: print the script for tab completion in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from rigdyno.base.errors import EXIT_DONE, UsageError


@click.command("completion", short_help="Print the script for tab completion in a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> int:
    """Print the script for tab completion in a shell.

    \b
    Examples:
      rigdyno completion bash >> ~/.bashrc
      rigdyno completion zsh  >> ~/.zshrc
      rigdyno completion fish > ~/.config/fish/completions/rigdyno.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"no completion for {shell}")
    click.echo(kind(context.find_root().command, {}, "rigdyno", "_RIGDYNO_COMPLETE").source())
    return EXIT_DONE
