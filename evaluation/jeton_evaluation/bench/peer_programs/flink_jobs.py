"""PyFlink: SQL, which runs in Java, and the DataStream API, whose functions run in Python.

Run by `bench.peers` in PyFlink's environment. Records are made by Flink's own generator from
their numbers, by the formulas of `bench.peers`. A job runs several times in one process:
over the records, its rows written to files and checked, which also warms Java up; over few records,
for what a job costs by itself; and over the records, its rows thrown away, less what a job costs.
"""

import json
import shutil
import sys
import time
from pathlib import Path

import numpy as np
from pyflink.table import EnvironmentSettings, TableEnvironment

FEW = 100

# As a BIGINT: the remainder has the divisor's type, and its square does not fit an INTEGER.
STEP = "CAST(MOD(i * 48271, 2147483647) AS BIGINT)"
MIXED = f"MOD({STEP} * {STEP}, 2147483647)"

SOURCE = f"""
CREATE TABLE records_{{name}} (
    i BIGINT,
    `key` AS MOD({MIXED}, 10000),
    `value` AS MOD({MIXED} / 10000, 1000),
    event_at AS TO_TIMESTAMP_LTZ(1000 + i / 10 - MOD({MIXED} / 7, 1000), 3),
    seen_at AS PROCTIME(){{watermark}}
) WITH (
    'connector' = 'datagen', 'rows-per-second' = '2000000000',
    'fields.i.kind' = 'sequence', 'fields.i.start' = '0', 'fields.i.end' = '{{last}}'
)"""

WATERMARK = ", WATERMARK FOR event_at AS event_at - INTERVAL '1' SECOND"

SINK = "CREATE TABLE out_{name} (`key` BIGINT, answer {type}) WITH ({options})"

PROGRAMS = {
    "word count": (
        "BIGINT",
        "",
        "SELECT `key`, COUNT(*) OVER (PARTITION BY `key` ORDER BY seen_at "
        "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) FROM records_{name}",
    ),
    "window mean": (
        "DOUBLE",
        WATERMARK,
        "SELECT `key`, AVG(CAST(`value` AS DOUBLE)) "
        "FROM TABLE(TUMBLE(TABLE records_{name}, DESCRIPTOR(event_at), INTERVAL '10' SECONDS)) "
        "GROUP BY `key`, window_start, window_end",
    ),
}


def main(variant: str, program: str, workers: int, records: int, data: Path, out: Path) -> None:
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    tables.get_config().set("parallelism.default", str(workers))
    tables.get_config().set("pipeline.object-reuse", "true")
    kind, watermark, query = PROGRAMS[program]

    def job(name: str, count: int, options: str) -> float:
        tables.execute_sql(SOURCE.format(name=name, last=count - 1, watermark=watermark))
        tables.execute_sql(SINK.format(name=name, type=kind, options=options))
        start = time.perf_counter()
        tables.execute_sql(f"INSERT INTO out_{name} {query.format(name=name)}").wait()
        return time.perf_counter() - start

    files = out / "rows"
    job("checked", records, f"'connector'='filesystem', 'path'='file://{files}', 'format'='csv'")
    alone = min(job(f"few_{n}", FEW, "'connector'='blackhole'") for n in range(3))
    seconds = job("measured", records, "'connector'='blackhole'") - alone
    if seconds < alone:
        sys.exit(
            f"too few records: a job over {FEW} takes {alone:.1f} s, these {seconds:.1f} s more"
        )
    parts = [np.loadtxt(part, delimiter=",", ndmin=2) for part in read(files)]
    keys, answers = np.concatenate(parts).T
    reported = {"seconds": seconds, "rows": len(keys), "sum": answers.sum(), "counts": {}}
    if program == "word count":
        counts = np.zeros(10_000)
        np.maximum.at(counts, keys.astype(int), answers)
        reported["counts"] = dict(enumerate(counts.astype(int).tolist()))
    (out / "reported.json").write_text(json.dumps(reported))
    shutil.rmtree(files)


def read(files: Path) -> list[Path]:
    return [part for part in sorted(files.rglob("*")) if part.is_file() and part.stat().st_size]


if __name__ == "__main__":
    variant, program, workers, records, data, out = sys.argv[1:]
    main(variant, program, int(workers), int(records), Path(data), Path(out))
