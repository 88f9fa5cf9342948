"""Arguments and options that several commands have, as typer wants them."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Config", "Names", "Quality", "Resize", "Storage", "Timeout", "Topic"]

Names = list[str] | None

Topic = Annotated[str, typer.Argument(help="kafka://host:port/topic, or kafka://host:port,host:port/topic.")]
Config = Annotated[
    Names,
    typer.Option(
        "--config",
        "-X",
        metavar="KEY=VALUE",
        help="An option of librdkafka; a secret as env:NAME or file:PATH. Can be given several times.",
    ),
]
Storage = Annotated[
    Names,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="An option of obstore's store, for s3://, https:// and other addresses; a secret as env:NAME or"
        " file:PATH. Can be given several times.",
    ),
]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for a broker that does not answer.")]
Resize = Annotated[
    int | None, typer.Option(min=1, metavar="PIXELS", help="Scale larger images down: pixels of the shorter side.")
]
Quality = Annotated[
    int | None,
    typer.Option(min=1, max=100, help="Quality of the JPEGs that are written.", show_default="90 with --resize"),
]
