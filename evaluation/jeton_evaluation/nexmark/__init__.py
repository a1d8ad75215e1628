"""NEXMark: an online auction's events, made at any rate, anywhere."""

from jeton_evaluation.nexmark.config import Columns, Config, Kind
from jeton_evaluation.nexmark.frames import frames, stream_frames, tables
from jeton_evaluation.nexmark.generator import Generator
from jeton_evaluation.nexmark.sources import Inputs, add_inputs, sources

__all__ = [
    "Columns",
    "Config",
    "Generator",
    "Inputs",
    "Kind",
    "add_inputs",
    "frames",
    "sources",
    "stream_frames",
    "tables",
]
