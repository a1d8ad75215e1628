"""Regions that the generator leaves out: defects of issue 13 that other branches mend."""

import os

OFF: frozenset[str] = frozenset(
    os.environ.get(
        "ORACLE_OFF",
        "views,lateness in batch runs,negative times,extreme times,units of until,"
        "overflow,nan extremes,nan ranks,column names",
    ).split(",")
)
