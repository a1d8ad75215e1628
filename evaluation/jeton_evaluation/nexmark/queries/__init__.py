"""The queries, by what they need: rows alone, joins, windows, days, auctions that close."""

from jeton_evaluation.nexmark.queries import closing, days, joins, rows, windows
from jeton_evaluation.nexmark.queries.query import LIBRARY, RESULT, Query, get, names

__all__ = [
    "LIBRARY",
    "RESULT",
    "Query",
    "closing",
    "days",
    "get",
    "joins",
    "names",
    "rows",
    "windows",
]
