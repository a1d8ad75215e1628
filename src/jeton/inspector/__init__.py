"""The inspector: a live page of what runs, its metrics for other systems, and the event log.

The page needs ``pip install 'jeton[inspect]'``. A run or a query offers it itself: see
`Run.inspect` and `Query.inspect`.
"""
