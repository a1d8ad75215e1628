"""`jeton package`: an archive of this environment for the executors of a Spark cluster."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Final

from jeton.cli.command import FINE, BuiltIn, UsageError, add_json, count, print_json


def _run(options: argparse.Namespace) -> int:
    from jeton.cli.archive import NotPackable, all_installed, pack, require_installed
    from jeton.cli.checkpoint import bytes_text

    path: str = options.output
    if not path.endswith((".tar.gz", ".tgz")):
        raise UsageError(f"{path} must end in .tar.gz or .tgz, by which Spark knows how to unpack")
    names = ["jeton", *options.packages, *(all_installed() if options.all else ())]
    try:
        require_installed(names)
    except NotPackable as error:
        raise UsageError(error.message) from None
    packed = pack(path, names, with_python=options.python, with_spark=options.with_spark)
    if options.json:
        print_json(asdict(packed))
        return FINE
    others = count(len(packed.packages) - 1, "other package")
    python = f"Python {packed.python}" + (" itself" if packed.includes_python else "")
    without = f", without {' and '.join(packed.left_out)}" if packed.left_out else ""
    joined = "with" if packed.includes_python else "for"
    print(f"{path}: {bytes_text(packed.bytes)}, jeton {packed.packages['jeton']} and {others}")
    print(f"  {joined} {python}{without}")
    print("on a cluster, with your own Python at the driver:")
    print(f"  PYSPARK_PYTHON=./env/bin/python PYSPARK_DRIVER_PYTHON=python \\\n"
          f"    spark-submit --archives {path}#env app.py")  # fmt: skip
    return FINE


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "packages",
        nargs="*",
        metavar="PACKAGE",
        help="a package that your operators use, packed with all that it needs",
    )
    parser.add_argument(
        "-o", "--output", default="env.tar.gz", metavar="FILE", help="by default env.tar.gz"
    )
    parser.add_argument("--all", action="store_true", help="pack all packages of this environment")
    parser.add_argument(
        "--python",
        action="store_true",
        help="pack this Python too, for machines that do not have its version",
    )
    parser.add_argument(
        "--with-spark", action="store_true", help="pack PySpark too, which clusters have as a rule"
    )
    add_json(parser, "the packages of the archive and its size")


COMMAND: Final = BuiltIn(
    "package",
    "pack this environment for the executors of a Spark cluster",
    "Pack Jeton and all that it needs into an archive that spark.archives takes. Executors unpack "
    "it and run its bin/python. The packages are those of the Python that runs this command.",
    "jeton package\njeton package scikit-learn --python -o env.tar.gz",
    _add_arguments,
    _run,
)
