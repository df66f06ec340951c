"""The program `hasten`: its subcommands by name, and what they share."""

from __future__ import annotations

import difflib
import importlib
import math
import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    _Number = click.ParamType[float]
else:
    _Number = click.ParamType  # not generic in click 8.1

#: Subcommands in the order of the help; each is `command` in the file of its name.
COMMANDS = ("diagnose", "compare", "tune", "batch", "run", "verify", "explain", "cache", "env")


class Program(click.Group):
    """A group whose subcommands are imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all subcommands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The subcommand of this name."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"hasten.commands.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand, or say which one may have been meant."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            ctx.fail(f"no such command: {name}; {_meant(name)}")
        return super().resolve_command(ctx, args)


def _meant(name: str) -> str:
    if name.endswith(".py") or os.path.sep in name:
        return f"did you mean: hasten tune {name}?"
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"


@click.command(cls=Program, invoke_without_command=True)
@click.version_option(package_name="hasten", message="%(prog)s %(version)s")
@click.pass_context
def program(ctx: click.Context) -> None:
    """Make PyTorch training faster on the script you already have, and prove it.

    \b
    hasten tune train.py --epochs 3    find what makes it faster; writes hasten.toml
    hasten run  train.py --epochs 3    train with what was found

    Everything after the script's name belongs to the script.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def usage_line(error: click.UsageError) -> str:
    """One line for a usage error, with the command whose help tells more."""
    message = " ".join(error.format_message().split()).rstrip(".")
    message = message[:1].lower() + message[1:]
    path = error.ctx.command_path if error.ctx is not None else "hasten"
    return f"{message} (see {path} --help)"


class ScriptCommand(click.Command):
    """A subcommand that ends in SCRIPT [ARGS]...: all that follows the script is the script's."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.allow_interspersed_args = False
        script = click.Argument(
            ["argv"], nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]..."
        )
        module = click.Option(["-m", "module"], is_flag=True, help="SCRIPT is a module's name.")
        self.params += [module, script]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Also take `-mname`, as Python does, and refuse an empty command line."""
        index = self._first_that_is_no_option(args)
        if index < len(args) and args[index].startswith("-m"):
            args = [*args[:index], "-m", args[index][2:], *args[index + 1 :]]
        rest = super().parse_args(ctx, args)
        if not ctx.params.get("argv") and not ctx.resilient_parsing:
            ctx.fail("no module named after -m" if ctx.params.get("module") else "no script given")
        return rest

    def _first_that_is_no_option(self, args: list[str]) -> int:
        """Where our options end: at the script, `--`, or `-mname`."""
        options = [param for param in self.params if isinstance(param, click.Option)]
        valued = {name for option in options if not option.is_flag for name in option.opts}
        index = 0
        while index < len(args):
            argument = args[index]
            attached = argument.startswith("-m") and argument != "-m"
            if attached or argument == "--" or not argument.startswith("-"):
                break
            index += 2 if argument in valued else 1
        return index


def script_arguments(module: bool, argv: tuple[str, ...]) -> tuple[str, ...]:
    """The script and its arguments as Python takes them."""
    return ("-m", *argv) if module else argv


class Seconds(_Number):
    """A number of seconds above zero."""

    name = "seconds"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number; anything else is a usage error."""
        try:
            seconds = float(str(value))
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            self.fail(f"{value!r} is not a number of seconds above 0", param, ctx)
        return seconds


#: Options that several subcommands take.
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout."
)
shield_option = click.option(
    "--shield",
    type=click.Choice(["auto", "overlay", "redirect", "none"]),
    default="auto",
    show_default=True,
    help="How your files are protected.",
)
timeout_option = click.option(
    "--timeout",
    type=Seconds(),
    default=600.0,
    show_default=True,
    help="Seconds until the first iteration.",
)
item_seeds_option = click.option(
    "--item-seeds", is_flag=True, help="Random items come from seed, epoch and index."
)
