"""Defects of issue 13 that other branches mend: regions that the generator leaves out until then."""

OFF: frozenset[str] = frozenset(
    {"views", "lateness in batch runs", "negative times", "extreme times", "units of until",
     "overflow", "nan extremes"}
)  # fmt: skip
