"""A shared index: several lookups, each as of its own time, one copy of the data.

Moves between teams are arranged by team, once: an index over time that any number of operators can
read. One lookup finds who was on a team when it shipped a version; the other finds who was on the
team that owned a part when it broke. Each gets the team as of that time, even if it asks late.
Entries that no reader can look up any more are dropped.
"""

import jeton as jt
from jeton.idioms.arrangement import arrange
from jeton.idioms.lookup_join import lookup_join


def company() -> jt.Flow:
    """A flow from moves between teams, releases and incidents to who was involved."""
    flow = jt.Flow("company")
    moves = flow.input("moves", time="day", schema={"team": str, "who": str, "change": int})
    releases = flow.input("releases", time="day", schema={"team": str, "version": str})
    incidents = flow.input("incidents", time="day", schema={"part": str, "owner": str})

    teams = arrange(moves, "team", diff="change")
    flow.output("shipped", lookup_join(releases, teams))
    flow.output("paged", lookup_join(incidents, teams, "owner"))
    return flow


MOVES = {
    "day": [1, 1, 2, 10, 10],
    "team": ["core", "core", "web", "core", "web"],
    "who": ["Ann", "Bob", "Cleo", "Bob", "Bob"],
    "change": [1, 1, 1, -1, 1],  # +1 joins, -1 leaves
}
RELEASES = {"day": [5, 12], "team": ["core", "core"], "version": ["1.0", "1.1"]}
INCIDENTS = {"day": [9, 11], "part": ["login", "login"], "owner": ["web", "web"]}
INPUTS = {"moves": MOVES, "releases": RELEASES, "incidents": INCIDENTS}

if __name__ == "__main__":
    result = company().run(INPUTS, workers=2)
    for row in result["shipped"].to_pylist():
        print(f"day {row['day']:>2}: {row['who']} shipped {row['version']}")
    for row in result["paged"].to_pylist():
        print(f"day {row['day']:>2}: {row['who']} was called about {row['part']}")
