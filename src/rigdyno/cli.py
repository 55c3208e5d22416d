"""The command line: parse, call a command, and turn errors into one line and an exit code. It has no other logic."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from rigdyno import __version__, catalogue
from rigdyno.base.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_USAGE, RigdynoError, suggestion

EXAMPLES = """\b
Examples:
  rigdyno                             this machine in a minute
  rigdyno run device                  a suite
  rigdyno run all                     every suite, in 15 minutes
  rigdyno run tensor_add --sweep size=1024,4096
  rigdyno run train.py:step           your own training step
  rigdyno report                      the newest run again
  rigdyno duel train.py:old train.py:new
  rigdyno compare OLD NEW             did it get slower?
  rigdyno leaderboard device          among the published machines
"""


class Verbs(click.Group):
    """The group of all verbs. Each is one file in commands/, which is imported when it is called."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return _verbs()

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in _verbs():
            return None
        command: click.Command = catalogue.load("command", name.replace("-", "_"))
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = arguments[0]
        if name not in _verbs():
            raise click.UsageError(f"no command named '{name}'; {suggestion(name, _verbs())}")
        return super().resolve_command(context, arguments)


def _verbs() -> list[str]:
    """Return the verbs as they are typed: plan_privacy.py is `plan-privacy`."""
    return [name.replace("_", "-") for name in catalogue.names("command")]


@click.group(cls=Verbs, invoke_without_command=True, epilog=EXAMPLES, context_settings={"max_content_width": 100})
@click.version_option(__version__, "--version", prog_name="rigdyno", message="%(prog)s %(version)s")
@click.option("--json", "as_json", is_flag=True, help="Without a command: print one JSON document.")
@click.option("--quiet", is_flag=True, help="Without a command: print only the table and the verdict.")
@click.option("--label", help="Without a command: name of this machine in tables.")
@click.option("--out", type=click.Path(file_okay=False), help="Without a command: folder of the runs.")
@click.pass_context
def rigdyno(context: click.Context, as_json: bool, quiet: bool, label: str | None, out: str | None) -> None:
    """Measure what deep learning costs on this machine, with confidence intervals and a verdict.

    Without a command, measure for a minute how fast this machine is."""
    if context.invoked_subcommand is None:
        command = catalogue.load("command", "run")
        context.invoke(command, target="quick", as_json=as_json, quiet=quiet, label=label, out=out)


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        code = rigdyno.main(args=arguments, prog_name="rigdyno", standalone_mode=False)
    except click.ClickException as error:
        return _print_error(error.format_message(), EXIT_USAGE)
    except RigdynoError as error:
        return _print_error(str(error), error.exit_code)
    except (KeyboardInterrupt, click.exceptions.Abort):
        return _print_error("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader has gone (`| head`): not an error; keep Python from complaining when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    return code if isinstance(code, int) else EXIT_DONE


def _print_error(message: str, code: int) -> int:
    click.echo(f"rigdyno: {' '.join(message.split())}", err=True)
    return code
