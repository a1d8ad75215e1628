"""Buckets: a real server of S3's protocol, with and without trouble on the way."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from random import Random
from secrets import token_hex
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs as arrow_fs

from jeton.connectors.sinks import Parquet, SinkContext
from jeton.connectors.sources import Files as FileSource
from jeton.connectors.sources import Parquet as ParquetSource
from jeton.errors import JetonError, StoreRefused, Superseded
from jeton.storage import object_store, store_settings
from jeton.storage.checkpoints import Checkpoints
from jeton.storage.files import Files
from jeton.storage.store import PIECE
from jeton.storage.store_settings import StoreSettings
from tests.cluster.test_checkpoint_committer import PART, committer
from tests.storage.racing import races
from tests.storage.s3_server import (
    BUCKET,
    HUNG_UP,
    Answer,
    Asked,
    Proxy,
    error,
    proxied,
    s3_server,
    settings_of,
    unsteady,
)
from tests.storage.stored_rows import newest, read, write


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def proxy(server: str) -> Iterator[Proxy]:
    before = store_settings.current()
    with proxied(server) as made:
        store_settings.use(settings_of(made.endpoint))
        yield made
    store_settings.use(before)


@pytest.fixture
def folder(proxy: Proxy) -> str:
    return f"s3a://{BUCKET}/{token_hex(6)}"


def test_files_are_what_was_written(folder: str) -> None:
    files = Files(folder)
    large = bytes(range(256)) * (PIECE // 256 + 1)
    files.write(files.root / "ü b/c=1" / "small?", [b"ab", memoryview(b"cd")])
    files.write(files.root / "large", [large[: PIECE // 3], pa.py_buffer(large[PIECE // 3 :])])
    assert files.read(files.root / "ü b/c=1" / "small?") == b"abcd"
    assert files.read(files.root / "large") == large
    assert files.names(files.root) == ["large"]
    assert files.folders(files.root) == ["ü b"]
    assert files.names(files.root / "ü b/c=1") == ["small?"]
    info = files.info(files.root / "large")
    assert info is not None
    assert info.size == len(large)
    for start, size in ((0, 3), (5, 0), (len(large) - 2, 10), (len(large), 1), (10**9, 5)):
        assert files.read_at(files.root / "large", start, size) == large[start : start + size]
    files.remove(files.root / "large")
    files.remove(files.root / "large")
    assert not files.exists(files.root / "large")
    for act in (files.read, lambda path: files.read_at(path, 0, 1)):
        with pytest.raises(FileNotFoundError, match="large is not there"):
            act(files.root / "large")
    assert files.names(files.root / "nowhere") == []
    assert files.uri(files.root / "large") == f"{folder}/large"


def test_folders_that_tools_create_are_no_files(server: str, folder: str) -> None:
    files = Files(folder)
    for name in ("", "day=3/"):
        key = f"{folder.removeprefix('s3a://')}/{name}"
        urlopen(Request(f"{server}/{key}", b"", method="PUT")).close()
    assert files.names(files.root) == files.names(files.root / "day=3") == []
    with files.output(files.root / "day=3" / "1.parquet") as stream:
        pq.write_table(pa.table({"time": [1]}), stream)
    assert ParquetSource(folder).schema().names == ["time", "day"]


def test_a_bucket_is_a_folder(server: str, folder: str) -> None:
    bucket = f"b{token_hex(6)}"
    urlopen(Request(f"{server}/{bucket}", method="PUT")).close()
    files = Files(f"s3a://{bucket}")
    assert not files.exists(files.root)
    with files.output(files.root / "1.parquet") as stream:
        pq.write_table(pa.table({"time": [1]}), stream)
    assert ParquetSource(f"s3a://{bucket}/").schema().names == ["time"]


def test_a_file_moves_whole_and_once(folder: str) -> None:
    files = Files(folder)
    files.write(files.root / ".a", [b"here"])
    for _ in range(2):
        files.move(files.root / ".a", files.root / "a")
    assert files.names(files.root) == ["a"]
    files.remove(files.root / "a")
    with pytest.raises(FileNotFoundError):
        files.move(files.root / ".a", files.root / "a")


# Creating


def lost_answers(times: int) -> Callable[[Asked, Callable[[], Answer]], Answer | None]:
    left = [HUNG_UP, error("SlowDown", 503)] * times

    def trouble(asked: Asked, carry_out: Callable[[], Answer]) -> Answer | None:
        if asked.is_create and left:
            carry_out()
            return left.pop()
        return None

    return trouble


def test_who_creates_a_file_knows_it_although_answers_are_lost(proxy: Proxy, folder: str) -> None:
    """The second request finds the file that the first one made."""
    files = Files(folder)
    proxy.trouble = lost_answers(1)
    files.put(files.root / "a", b"mine")
    assert len([asked for asked in proxy.asked if asked.is_create]) == 3
    with pytest.raises(FileExistsError):
        files.put(files.root / "a", b"mine")
    proxy.trouble = lost_answers(1)
    with pytest.raises(FileExistsError):
        files.put(files.root / "a", b"yours")
    assert files.read(files.root / "a") == b"mine"


def test_two_that_hinder_each_other_try_again(proxy: Proxy, folder: str) -> None:
    """S3 may refuse both of two requests at the same time, with nothing created."""
    left = [error("ConditionalRequestConflict", 409)]

    def trouble(asked: Asked, carry_out: Callable[[], Answer]) -> Answer | None:
        return left.pop() if asked.is_create and left else None

    proxy.trouble = trouble
    files = Files(folder)
    files.put(files.root / "a", b"mine")
    assert files.read(files.root / "a") == b"mine"


@pytest.mark.parametrize("part", [0.0, 0.3])
def test_of_all_that_create_a_file_one_succeeds(proxy: Proxy, folder: str, part: float) -> None:
    proxy.trouble = unsteady(Random(7), part)
    won: list[tuple[int, int]] = []
    unknown: list[tuple[int, int]] = []
    barrier = threading.Barrier(6)

    def run(me: int) -> None:
        files = Files(folder)
        for number in range(8):
            barrier.wait()
            try:
                files.put(files.root / str(number), f"{me} {number}".encode())
            except FileExistsError:
                continue
            except OSError:
                unknown.append((number, me))
            else:
                won.append((number, me))

    threads = [threading.Thread(target=run, args=(me,)) for me in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = Files(folder)
    proxy.trouble = None
    for number in range(8):
        me = int(files.read(files.root / str(number)).split()[0])
        others = [each for each, maker in won if each == number and maker != me]
        assert not others, "two were told that they had created it"
        assert (number, me) in won or (number, me) in unknown
    assert part or not unknown


@pytest.mark.parametrize("times", [1, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("part", [0.0, 0.15])
def test_of_two_drivers_one_wins(proxy: Proxy, folder: str, times: int, part: float) -> None:
    proxy.trouble = unsteady(Random(times), part)
    superseded = races(folder, times)
    if times > 50:
        print(f"{times} races, {superseded} superseded, part {part}")
        assert superseded


# Trouble


@pytest.mark.parametrize(
    ("code", "status", "remedy"),
    [
        ("NoSuchBucket", 404, "there is no such bucket"),
        ("AccessDenied", 403, "the credentials do not allow it"),
        ("RequestTimeTooSkewed", 403, "the clock of this machine"),
        ("SignatureDoesNotMatch", 403, "does not accept the credentials"),
        ("ExpiredToken", 400, "does not accept the credentials"),
        ("AuthorizationHeaderMalformed", 400, "in another region"),
    ],
)
def test_refusals_say_what_to_do(
    proxy: Proxy, folder: str, code: str, status: int, remedy: str
) -> None:
    files = Files(folder)
    proxy.trouble = lambda asked, carry_out: error(code, status)
    acts: list[Callable[[PurePosixPath], object]] = [
        files.names,
        files.read,
        files.remove,
        lambda path: files.write(path, [b""]),
        lambda path: files.put(path, b""),
        lambda path: files.move(path, path / "to"),
    ]
    for act in acts:
        with pytest.raises(StoreRefused, match=remedy) as caught:
            act(files.root / "a")
        assert "hush" not in str(caught.value)
        assert f"{folder}/a" in str(caught.value)
    with pytest.raises(StoreRefused, match=remedy):
        Checkpoints(folder).take_lease()


def test_a_wrong_endpoint_is_named(folder: str) -> None:
    store_settings.use(settings_of("http://127.0.0.1:1"))
    files = Files(folder)
    with pytest.raises(OSError, match=r"failed to create it.*mend its endpoint"):
        files.put(files.root / "a", b"")


def test_nothing_is_said_about_credentials(proxy: Proxy, folder: str) -> None:
    sink, store = Parquet(folder), Checkpoints(folder)
    sink.files.names(sink.path)
    store.versions()
    for thing in (sink, store, sink.files, store_settings.current(), sink.files._store):
        assert "hush" not in repr(thing)
        assert "AKID" not in repr(thing)
    assert b"hush" not in pickle.dumps(sink)
    assert b"hush" not in pickle.dumps(Checkpoints(folder))
    assert pickle.loads(pickle.dumps(sink)).files.names(sink.path) == []


def test_a_missing_bucket_is_no_empty_store(proxy: Proxy) -> None:
    with pytest.raises(StoreRefused, match="there is no such bucket"):
        Checkpoints("s3://nowhere/checkpoint").latest()


def test_reads_are_patient(proxy: Proxy, folder: str) -> None:
    write(Checkpoints(folder), 1, {1: 1, 2: 2})
    proxy.trouble = unsteady(Random(3), 0.4)
    assert read(newest(Checkpoints(folder))) == {1: 1, 2: 2}


def test_a_store_may_fail_for_longer_than_a_second(
    proxy: Proxy, folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(object_store, "PATIENCE", (0.01,))
    files = Files(folder)
    files.write(files.root / "a", [b"here"])
    left = [error("SlowDown", 503)] * 8
    proxy.trouble = lambda asked, carry_out: left.pop() if left else None
    assert files.read(files.root / "a") == b"here"
    assert "a request is made again in 0.01 s" in caplog.text
    proxy.trouble = lambda asked, carry_out: error("SlowDown", 503)
    with pytest.raises(OSError, match="the store failed to read it") as caught:
        files.read(files.root / "a")
    assert type(caught.value) is OSError
    proxy.asked.clear()
    proxy.trouble = lambda asked, carry_out: error("InvalidRequest", 400)
    with pytest.raises(OSError, match="the store failed to read it"):
        files.read(files.root / "a")
    assert len(proxy.asked) == 1


# Listings that lag behind


def test_checkpoints_go_on_although_listings_lag(proxy: Proxy, folder: str) -> None:
    """Every listing is as it was when the folder was first looked at: empty."""
    first: dict[str, Answer] = {}

    def trouble(asked: Asked, carry_out: Callable[[], Answer]) -> Answer | None:
        return first.setdefault(asked.path, carry_out()) if asked.is_listing else None

    proxy.trouble = trouble
    run = committer(Path(), store=Checkpoints(folder))
    assert run.recover().version is None
    for version in range(1, 8):
        run.commit(version, {0: PART}, {}, {}, 0.0)
    rival = committer(Path(), store=Checkpoints(folder))
    assert rival.recover().version == 7
    with pytest.raises(Superseded):
        run.commit(8, {0: PART}, {}, {}, 0.0)
    rival.commit(8, {0: PART}, {}, {}, 0.0)
    assert Checkpoints(folder).state().versions[-1].version == 8


# Sources and sinks


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": list(numbers)})


def visible(server: str, sink: Parquet) -> list[int]:
    """What another reader sees, which passes over names that begin with a dot."""
    plain = arrow_fs.S3FileSystem(
        access_key="a", secret_key="b", endpoint_override=server, region="us-east-1"
    )
    found: list[int] = pq.read_table(str(sink.path), filesystem=plain)["n"].to_pylist()
    return sorted(found)


def test_rows_are_visible_once_committed(server: str, folder: str) -> None:
    sink = Parquet(folder, rows=2)
    first, second = SinkContext("q", 1, worker=0), SinkContext("q", 2, worker=0)
    writer = sink.open(first)
    for number in range(5):
        writer.write(rows(number))
    staged = writer.stage(1)
    assert all(name.startswith(".") for name in sink.files.names(sink.path))
    sink.commit(first, 1, staged)
    sink.commit(first, 1, staged)
    assert visible(server, sink) == [0, 1, 2, 3, 4]
    writer.write(rows(5))
    left_behind = writer.stage(2)
    sink.roll_back(second, 1)
    assert visible(server, sink) == [0, 1, 2, 3, 4]
    with pytest.raises(JetonError, match="is not there, hidden or visible"):
        sink.commit(first, 2, left_behind)
    again = sink.open(second)
    again.write(rows(5))
    sink.commit(second, 2, again.stage(2))
    assert visible(server, sink) == [0, 1, 2, 3, 4, 5]
    sink.roll_back(SinkContext("q", 3), 1)
    assert visible(server, sink) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("form", ["parquet", "csv", "json", "feather"])
def test_files_are_read_as_they_appear(folder: str, form: str) -> None:
    files = Files(folder)
    texts = {"csv": "n\n{}\n", "json": '{{"n": {}}}\n'}

    def add(name: str, number: int) -> None:
        if form in texts:
            files.write(files.root / name, [texts[form].format(number).encode()])
        elif form == "parquet":
            with files.output(files.root / name) as stream:
                pq.write_table(rows(number), stream)
        else:
            with (
                files.output(files.root / name) as stream,
                pa.ipc.new_file(stream, rows(0).schema) as writer,
            ):
                writer.write_table(rows(number))

    for number in range(4):
        add(f"{number}.data", number)
    add("_hidden", 9)
    source = FileSource(folder, format=form, end=True)
    seen, position = [], None
    reader = source.open("0/1", None)
    while not reader.ended:
        batch = reader.read()
        if batch is not None:
            seen += batch["n"].to_pylist()
            position = position or reader.position
    assert seen == [0, 1, 2, 3]
    reader, seen = source.open("0/1", position), []
    while not reader.ended:
        batch = reader.read()
        seen += [] if batch is None else batch["n"].to_pylist()
    assert seen == [1, 2, 3]


def test_a_file_that_a_listing_leaves_out_is_not_read_again(proxy: Proxy, folder: str) -> None:
    files = Files(folder)
    with files.output(files.root / "a") as stream:
        pq.write_table(rows(1), stream)
    source = FileSource(folder, every=0.0)
    reader = source.open("0/1", None)
    assert reader.read() is not None
    assert reader.read() is None
    empty = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
    proxy.trouble = lambda asked, carry_out: (200, empty) if asked.is_listing else None
    assert reader.read() is None
    proxy.trouble = None
    assert source.open("0/1", reader.position).read() is None
    files.remove(files.root / "a")
    assert reader.read() is None
    assert reader.position == {"done": [], "reading": None, "rows": 1}


# Settings


def test_settings_of_a_bucket_come_first(proxy: Proxy) -> None:
    store_settings.use(
        StoreSettings(
            {
                "fs.s3a.endpoint": "127.0.0.1:1",
                "fs.s3a.connection.ssl.enabled": "false",
                "fs.s3a.access.key": "a",
                "fs.s3a.secret.key": "b",
                f"fs.s3a.bucket.{BUCKET}.endpoint": proxy.endpoint.removeprefix("http://"),
                f"fs.s3a.bucket.{BUCKET}.access.key": "AKIDOTHER",
                f"fs.s3a.bucket.{BUCKET}.session.token": "the-token",
            }
        )
    )
    files = Files(f"s3a://{BUCKET}/own")
    assert files.names(files.root) == []
    headers = proxy.asked[-1].headers
    assert "Credential=AKIDOTHER/" in headers["authorization"]
    assert headers["x-amz-security-token"] == "the-token"


def test_the_environment_says_what_settings_do_not(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store_settings.use(StoreSettings())
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "env-token")
    first = Files(f"s3://{BUCKET}/env")
    assert first.names(first.root) == []
    assert "Credential=AKIDENV/" in proxy.asked[-1].headers["authorization"]
    assert proxy.asked[-1].headers["x-amz-security-token"] == "env-token"
    # Keys of the settings do not go with a token of the environment.
    store_settings.use(StoreSettings({"fs.s3a.access.key": "AKIDSET", "fs.s3a.secret.key": "b"}))
    assert first.names(first.root) == []
    assert "Credential=AKIDSET/" in proxy.asked[-1].headers["authorization"]
    assert "x-amz-security-token" not in proxy.asked[-1].headers
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SESSION_TOKEN")
    credentials = tmp_path / "credentials"
    credentials.write_text("[work]\naws_access_key_id = AKIDFILE\naws_secret_access_key = c\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_PROFILE", "work")
    store_settings.use(StoreSettings({"fs.s3a.endpoint.region": "eu-north-1"}))
    assert first.names(first.root) == []
    assert "Credential=AKIDFILE/" in proxy.asked[-1].headers["authorization"]
    assert "/eu-north-1/s3/" in proxy.asked[-1].headers["authorization"]


def test_providers_that_only_java_knows_are_refused(proxy: Proxy) -> None:
    provider = "fs.s3a.aws.credentials.provider"
    store_settings.use(StoreSettings({provider: "org.example.OwnProvider"}))
    with pytest.raises(StoreRefused, match=r"org\.example\.OwnProvider, which only Java can ask"):
        Checkpoints(f"s3a://{BUCKET}/own").versions()
    anonymous = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
    store_settings.use(StoreSettings({provider: anonymous, "fs.s3a.endpoint": proxy.endpoint}))
    assert Checkpoints(f"s3a://{BUCKET}/own").versions() == []
    assert "authorization" not in proxy.asked[-1].headers
