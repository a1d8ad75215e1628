"""The commands `jeton inspect`, `jeton why` and `jeton log`, one in each module."""
