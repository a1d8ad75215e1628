"""Keys of groups that come and go do not pile up."""

import numpy as np
import pyarrow as pa

import jeton as jt
from jeton.state.groups import Groups


def test_text_keys_of_closed_groups_are_forgotten() -> None:
    groups = Groups(["word"], {"count": jt.agg.count()}, timed=True)
    for window in range(200):
        words = pa.array([f"word {window} {number}" for number in range(100)])
        batch = jt.Batch({"word": words}, np.full(100, window))
        slots, _ = groups.find(batch, np.full(100, window, dtype=np.uint64))
        groups.add(slots, batch)
        assert list(groups.columns(slots)["word"]) == list(words)
        groups.remove(slots)
    assert len(groups) == 0
    kept = groups._keys._columns[0]._bytes
    assert kept is not None
    assert kept.rows < 5000
