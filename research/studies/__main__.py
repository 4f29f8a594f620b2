"""The studies' commands, with the options and exit codes of `aot`: `python -m research.studies --help`."""

from __future__ import annotations

from typing import ClassVar

import click

from aot.cli.main import Commands


class Studies(Commands):
    """The commands of studies, loaded when they are called."""

    table: ClassVar[dict[str, tuple[str, str]]] = {
        "census": ("research.studies.census_command:census_command", "Compile every legal candidate; takes hours."),
        "formats": ("research.studies.formats:formats", "Show what each format of weights costs."),
        "prior": ("research.studies.prior_command:prior_command", "Show what the cost model assumes of a device."),
        "run": ("research.studies.runs:run", "Say in a selection by which command it was made."),
        "search": ("research.studies.search_command:search", "Compare search strategies on recorded times."),
        "tiles": ("research.studies.library_tiles:tiles", "List kernels with the tiles that a library chose."),
    }


@click.group(cls=Studies, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def main() -> None:
    """Run a study of kernels, of the cost model or of searches."""


if __name__ == "__main__":
    main()
