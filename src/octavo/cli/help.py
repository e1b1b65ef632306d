"""Help as plain text. Typer's tables cut long names of options where a terminal is narrow."""

from typing import Any

from typer.core import TyperGroup


class Group(TyperGroup):
    """Commands, each listed with the whole first sentence of what it does."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list; texts go on in the next line where the inherited one would cut them."""
        rows = [
            (name, self.commands[name].get_short_help_str(limit=1000)) for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
