"""NEXMark: an online auction's events, made at any rate, anywhere."""

from jeton.nexmark.config import Columns, Config, Kind
from jeton.nexmark.frames import frames, stream_frames, tables
from jeton.nexmark.generator import Events, Generator
from jeton.nexmark.sources import Inputs, add_inputs, sources

__all__ = [
    "Columns",
    "Config",
    "Events",
    "Generator",
    "Inputs",
    "Kind",
    "add_inputs",
    "frames",
    "sources",
    "stream_frames",
    "tables",
]
