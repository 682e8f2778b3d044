from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bernstein import EventJournal, compute_replay_fingerprint, load_replay_events, verify_journal
from bernstein.chain.read import parse_row
from bernstein.chain.verify import check_chain, find_bad_lines
from bernstein.errors import JournalError, RecordingError, UnknownRunError, UsageError
from bernstein.events.entry import GENESIS, JournalEntry, event_hash, payload_hash
from tests import independent

# Worked out with sha256sum:
#   printf 'bernstein.payload.v1\nrun.started\n\n{"agentId":"a"}' | sha256sum
#   printf 'bernstein.event.v1\n<64 zeros>\nrun.started\n<that>\n0' | sha256sum     and so on
GOLDEN = [
    ("run.started", "", {"agentId": "a"}),
    ("step.started", "build/api", {"stepId": "build/api", "depth": 0, "label": "Ä\u2028"}),
    ("run.finished", "", {"status": "completed"}),
]
GOLDEN_HEAD = "5de212c845b963597bde43971ffea822b8d69156b989de846c17d0916995a6cf"


def journal(tmp_path: Path, count: int = 0) -> EventJournal:
    opened = EventJournal("run", tmp_path)
    for n in range(count):
        opened.append("step.started", {"stepId": f"s{n}", "depth": 0}, f"lane/{n % 3}")
    return opened


def test_the_head_of_a_golden_run_is_the_one_worked_out_by_hand(tmp_path: Path) -> None:
    with EventJournal("run", tmp_path) as opened:
        for event, lane, payload in GOLDEN:
            opened.append(event, payload, lane)
        assert opened.head() == GOLDEN_HEAD
    assert compute_replay_fingerprint(opened.path) == GOLDEN_HEAD


def test_a_row_is_one_line_with_its_fields_in_order(tmp_path: Path) -> None:
    with journal(tmp_path, 1) as opened:
        line = opened.path.read_text()
    assert re.fullmatch(
        r'\{"index":0,"event":"step.started","lane":"lane/0",'
        r'"payload":\{"depth":0,"stepId":"s0"\},"payload_hash":"[0-9a-f]{64}",'
        r'"prev_hash":"0{64}","event_hash":"[0-9a-f]{64}",'
        r'"ts":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z","elapsed_s":\d+\.\d{6}\}\n',
        line,
    )


def test_what_the_clock_says_is_in_no_hash(tmp_path: Path) -> None:
    heads = set()
    for name in ("a", "b"):
        with EventJournal(name, tmp_path) as opened:
            opened.append("run.started", {"agentId": "x"})
            heads.add(opened.head())
    assert len(heads) == 1


def test_folders_are_0700_and_files_0600(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with journal(tmp_path / "sdd", 1) as opened:
            assert opened.path.stat().st_mode & 0o777 == 0o600
            assert opened.path.parent.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(old)


def test_a_symlink_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "runs" / "run").mkdir(parents=True)
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / "runs" / "run" / "journal.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        EventJournal("run", tmp_path)


@pytest.mark.parametrize(
    "run_id", ["", "..", "a/b", ".hidden", "latest", "diff", "x" * 129, "a\nb"]
)
def test_a_run_id_is_one_safe_segment(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(UnknownRunError):
        EventJournal(run_id, tmp_path)


@pytest.mark.parametrize(
    ("event", "payload", "lane"),
    [
        ("Run", {}, ""),
        ("a" * 65, {}, ""),
        ("run\n", {}, ""),
        ("run", {}, "a b"),
        ("run", {}, "x" * 129),
        ("run", {}, "a\n"),
        ("run", {"a": {1, 2}}, ""),
        ("run", {"a": 2**53}, ""),
    ],
)
def test_what_would_blur_the_framing_is_refused(
    tmp_path: Path, event: str, payload: dict[str, object], lane: str
) -> None:
    with journal(tmp_path, 1) as opened:
        before = opened.path.read_bytes()
        with pytest.raises(UsageError):
            opened.append(event, payload, lane)
        assert opened.path.read_bytes() == before


def test_a_row_over_64_mib_is_refused_with_advice(tmp_path: Path) -> None:
    with journal(tmp_path, 1) as opened:
        before = opened.path.read_bytes()
        with pytest.raises(JournalError, match="blob"):
            opened.append("big", {"a": "x" * 2**26})
        assert opened.path.read_bytes() == before


def test_lone_surrogates_are_chained_and_do_not_collide(tmp_path: Path) -> None:
    with EventJournal("run", tmp_path) as opened:
        one = opened.append("a", {"text": "\udc00", "\ud800": 1})
        other = opened.append("a", {"text": "\udc01", "\ud800": 1})
    assert one.payload_hash != other.payload_hash
    assert verify_journal(opened.path).rows == 2
    assert independent.check(opened.path)[:2] == (True, 2)


def test_threads_make_one_chain(tmp_path: Path) -> None:
    with journal(tmp_path) as opened:
        threads = [
            threading.Thread(
                target=lambda n=n: [opened.append("a", {"n": n, "i": i}) for i in range(40)]
            )
            for n in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    verdict = verify_journal(opened.path)
    assert (verdict.verdict, verdict.rows) == ("prefix", 640)


def _append_many(folder: str, number: int) -> None:
    with EventJournal("run", folder) as opened:
        for i in range(200):
            opened.append("a", {"n": number, "i": i}, f"p/{number}")


def test_processes_make_one_chain_and_no_row_is_lost(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_append_many, args=(str(tmp_path), n)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    path = tmp_path / "runs" / "run" / "journal.jsonl"
    verdict = verify_journal(path)
    assert (verdict.verdict, verdict.rows) == ("prefix", 800)
    assert independent.check(path) == (True, 800, verdict.head)
    for number in range(4):
        own = [
            json.loads(bytes(row.payload))
            for row in load_replay_events(path)
            if row.lane == f"p/{number}"
        ]
        assert [row["i"] for row in own] == list(range(200))


def test_forked_children_append_to_one_chain(tmp_path: Path) -> None:
    with journal(tmp_path, 1) as opened:
        children = []
        for number in range(4):
            pid = os.fork()
            if pid == 0:
                try:
                    for i in range(100):
                        opened.append("a", {"n": number, "i": i})
                finally:
                    os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
    verdict = verify_journal(opened.path)
    assert (verdict.verdict, verdict.rows) == ("prefix", 401)


def test_a_torn_last_line_is_set_aside_and_the_chain_goes_on(tmp_path: Path) -> None:
    with journal(tmp_path, 3) as opened:
        whole = opened.path.read_bytes()
        head = opened.head()
    lines = whole.split(b"\n")
    for cut in range(1, len(lines[2]) + 1):
        torn = lines[2][:cut]
        opened.path.write_bytes(b"\n".join(lines[:2]) + b"\n" + torn)
        with EventJournal("run", tmp_path) as again:
            assert again.torn_path is not None
            assert again.torn_path.read_bytes() == torn
            again.torn_path.unlink()
            entry = again.append("step.started", {"stepId": "s2", "depth": 0}, "lane/2")
        assert entry.prev_hash == json.loads(lines[1])["event_hash"]
        assert entry.event_hash == head


def test_a_journal_whose_end_is_no_row_is_not_chained_to(tmp_path: Path) -> None:
    with journal(tmp_path, 2) as opened:
        with opened.path.open("ab") as file:
            file.write(b"\0" * 512 + b"\n")
        with pytest.raises(JournalError, match="whole row"):
            opened.append("a", {})
    verdict = verify_journal(opened.path)
    assert (verdict.verdict, verdict.reason, verdict.step_index) == ("mismatch", "not_json", 2)


def test_a_full_disk_leaves_the_whole_row_or_none(tmp_path: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with journal(tmp_path, 2) as opened:
        before = opened.path.read_bytes()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        for room in (0, 1, 50, 200):
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
            try:
                with pytest.raises(OSError, match=r"."):
                    opened.append("a", {"text": "x" * 300})
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert opened.path.read_bytes() == before
        opened.append("a", {"text": "x" * 300})
    assert verify_journal(opened.path).rows == 3


def test_durable_rows_are_on_disk_when_append_returns_and_share_fsyncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def slow(fd: int) -> None:
        size = os.fstat(fd).st_size
        time.sleep(0.005)
        fsync(fd)
        synced.append(size)

    monkeypatch.setattr("bernstein.chain.sync.os.fsync", slow)
    with EventJournal("run", tmp_path, durable=True) as opened:

        def work(n: int) -> None:
            for i in range(20):
                opened.append("a", {"n": n, "i": i})
                mine = f'"payload":{{"i":{i},"n":{n}}}'.encode()
                assert mine in opened.path.read_bytes()[: synced[-1]]

        threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        count = len(synced)
    assert verify_journal(opened.path).rows == 320
    assert count <= 320 / 4


@pytest.mark.parametrize(
    "event", ["tool.proposed", "tool.approved", "tool.denied", "provider_state_mutation"]
)
def test_what_something_irreversible_follows_is_always_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("bernstein.chain.sync.os.fsync", synced.append)
    monkeypatch.setattr("bernstein.chain.sync.FLUSH_S", 60)
    with journal(tmp_path) as opened:
        opened.append("step.started", {})
        assert synced == []
        opened.append(event, {})
        assert len(synced) == 1


def test_what_must_be_on_disk_before_a_row_is_put_there_before_it(tmp_path: Path) -> None:
    order: list[str] = []
    fsync = os.fsync
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bernstein.chain.sync.os.fsync", lambda fd: (order.append("row"), fsync(fd)))
        with EventJournal(
            "run", tmp_path, durable=True, before_sync=lambda: order.append("recording")
        ) as opened:
            opened.append("a", {})
    assert order == ["recording", "row"]


def test_buffered_rows_are_on_disk_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = threading.Event()
    monkeypatch.setattr("bernstein.chain.sync.os.fsync", lambda _: synced.set())
    with journal(tmp_path, 1):
        assert synced.wait(10)


def test_after_a_failing_fsync_no_row_is_acknowledged_and_none_is_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = EventJournal("run", tmp_path, durable=True)
    opened.append("a", {"n": 0})
    fsync = os.fsync

    def failing(fd: int) -> None:
        monkeypatch.setattr("bernstein.chain.sync.os.fsync", fsync)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("bernstein.chain.sync.os.fsync", failing)
    with pytest.raises(OSError, match="could not be put on disk"):
        opened.append("a", {"n": 1})
    with pytest.raises(OSError, match="could not be put on disk"):
        opened.append("a", {"n": 2})
    with pytest.raises(OSError, match="could not be put on disk"):
        opened.close()
    with EventJournal("run", tmp_path) as again:
        again.append("a", {"n": 3})
    assert verify_journal(opened.path).verdict == "prefix"
    # The row whose fsync failed is there once; the one behind it was not taken.
    assert [json.loads(bytes(row.payload))["n"] for row in load_replay_events(opened.path)] == [
        0,
        1,
        3,
    ]


def test_ctrl_c_during_an_fsync_loses_no_row_and_hangs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def interrupted(fd: int) -> None:
        monkeypatch.setattr("bernstein.chain.sync.os.fsync", fsync)
        raise KeyboardInterrupt

    journal = EventJournal("r", tmp_path, durable=True)
    monkeypatch.setattr("bernstein.chain.sync.os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        journal.append("a", {})
    closing = threading.Thread(target=lambda: (journal.append("b", {}), journal.close()))
    closing.daemon = True
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    assert [row.event for row in load_replay_events(journal.path)] == ["a", "b"]


def test_rows_survive_kill_9(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from bernstein import EventJournal\n"
        "j = EventJournal('run', sys.argv[1])\n"
        "for n in range(50): j.append('a', {'n': n}); print(n, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, check=False
    )
    assert done.returncode == -9
    assert done.stdout.split()[-1] == b"49"
    assert verify_journal(tmp_path / "runs" / "run" / "journal.jsonl").rows == 50


# --- tamper evidence


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    with journal(tmp_path, 5) as opened:
        pass
    return opened.path


def _envelope_spans(line: bytes) -> range:
    """Where ``ts`` and ``elapsed_s`` stand: only a seal covers them."""
    return range(line.rfind(b'"ts":"'), len(line) - 1)


def test_every_flipped_byte_is_named_at_its_row(sample: Path) -> None:
    data = sample.read_bytes()
    lines = data.split(b"\n")
    head = verify_journal(sample).head
    at = 0
    for index, line in enumerate(lines[:-1]):
        for place in range(len(line) + 1):
            for flip in (0x01, 0x80):
                changed = bytearray(data)
                changed[at + place] ^= flip
                sample.write_bytes(changed)
                verdict = verify_journal(sample)
                if verdict.verdict != "mismatch":
                    assert place in _envelope_spans(line), (index, place, flip)
                    assert verdict.head == head
                else:
                    assert verdict.step_index == index, (index, place, flip)
                assert independent.check(sample)[0] == (verdict.verdict == "prefix")
        at += len(line) + 1


def test_every_cut_is_torn_or_a_prefix_and_never_more(sample: Path) -> None:
    data = sample.read_bytes()
    for cut in range(len(data)):
        sample.write_bytes(data[:cut])
        verdict = verify_journal(sample)
        whole = data[:cut].count(b"\n")
        assert verdict.rows == whole
        if data[:cut].endswith(b"\n") or cut == 0:
            assert verdict.verdict == "prefix"
        else:
            assert (verdict.verdict, verdict.reason, verdict.step_index) == (
                "mismatch",
                "torn",
                whole,
            )


def test_a_deleted_doubled_or_swapped_row_is_named(sample: Path) -> None:
    lines = sample.read_bytes().split(b"\n")[:-1]
    for n in range(len(lines)):
        variants = {"doubled": [*lines[: n + 1], *lines[n:]]}
        if n < len(lines) - 1:
            variants["deleted"] = [*lines[:n], *lines[n + 1 :]]
            variants["swapped"] = [*lines[:n], lines[n + 1], lines[n], *lines[n + 2 :]]
        for name, changed in variants.items():
            sample.write_bytes(b"\n".join(changed) + b"\n")
            verdict = verify_journal(sample)
            assert (verdict.verdict, verdict.reason) == ("mismatch", "order"), name
            assert verdict.step_index == (n + 1 if name == "doubled" else n)


def test_salvage_lists_every_bad_line_and_goes_on(sample: Path) -> None:
    lines = sample.read_bytes().split(b"\n")[:-1]
    lines[1] = lines[1].replace(b'"s1"', b'"s9"')
    lines[3:3] = [b"garbage", b"\0" * 512]
    sample.write_bytes(b"\n".join(lines) + b"\n" + b'{"torn')
    bad = list(find_bad_lines(sample))
    assert [(b.line, b.reason) for b in bad] == [
        (1, "payload"),
        (3, "not_json"),
        (4, "not_json"),
        (7, "torn"),
    ]
    data = sample.read_bytes()
    assert data[bad[1].offset :].startswith(b"garbage")
    del lines[2]
    sample.write_bytes(b"\n".join(lines) + b"\n")
    assert "order" not in [b.reason for b in find_bad_lines(sample)][:1]


def test_a_healthy_journal_has_no_bad_line(sample: Path) -> None:
    assert list(find_bad_lines(sample)) == []


def test_changed_line_ends_are_called_that(sample: Path) -> None:
    sample.write_bytes(sample.read_bytes().replace(b"\n", b"\r\n"))
    verdict = verify_journal(sample)
    assert (verdict.verdict, verdict.reason, verdict.step_index) == ("mismatch", "line_endings", 0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'{"index":1,', b'{"index": 1,'),
        (b'{"index":1,', b'{"index":01,'),
        (b'{"index":1,', b'{"index":1,"index":1,'),
        (b'{"index":1,', b'{"index":1.0,'),
        (b'"lane":"lane/1",', b'"lane":"lane\\/1",'),
        (b'"elapsed_s":0', b'"elapsed_s":00'),
        (b'"elapsed_s":0', b'"elapsed_s":-0'),
        (b'"elapsed_s":0', b'"extra":1,"elapsed_s":0'),
    ],
)
def test_another_spelling_of_a_row_is_no_row(sample: Path, old: bytes, new: bytes) -> None:
    lines = sample.read_bytes().split(b"\n")
    assert old in lines[1]
    lines[1] = lines[1].replace(old, new)
    sample.write_bytes(b"\n".join(lines))
    verdict = verify_journal(sample)
    assert (verdict.verdict, verdict.step_index) == ("mismatch", 1)
    assert verdict.reason in {"not_json", "not_a_row"}


def test_a_fingerprint_of_what_does_not_hold_is_refused(sample: Path) -> None:
    sample.write_bytes(sample.read_bytes().replace(b"s3", b"s9"))
    with pytest.raises(RecordingError, match="row 3: payload"):
        compute_replay_fingerprint(sample)


def test_an_empty_journal_is_a_prefix_of_anything(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"")
    verdict = verify_journal(path)
    assert (verdict.verdict, verdict.rows, verdict.head) == ("prefix", 0, GENESIS)


@given(st.binary(max_size=300) | st.text(max_size=200).map(lambda t: t.encode("utf-8", "replace")))
def test_no_line_makes_the_reader_raise(line: bytes) -> None:
    assert isinstance(parse_row(line), str | JournalEntry)


def test_rows_of_two_writers_in_turn_make_one_chain(tmp_path: Path) -> None:
    with EventJournal("r", tmp_path) as first, EventJournal("r", tmp_path) as second:
        for n in range(40):
            (first if n % 3 else second).append("step.started", {"stepId": str(n), "depth": 0})
        for n in range(5):
            first.append("checkpoint", {"checkpointId": str(n)})
    assert check_chain(first.path).rows == 45
    with EventJournal("r", tmp_path) as third:
        assert third.append("checkpoint", {"checkpointId": "x"}).index == 45
    assert check_chain(first.path).rows == 46


def test_what_the_file_ends_in_counts_and_not_what_was_written_last(tmp_path: Path) -> None:
    with EventJournal("r", tmp_path) as journal:
        for n in range(3):
            journal.append("checkpoint", {"checkpointId": str(n)})
        lines = journal.path.read_bytes().splitlines(keepends=True)
        os.truncate(journal.path, len(lines[0]) + len(lines[1]))
        assert journal.append("checkpoint", {"checkpointId": "again"}).index == 2
        assert check_chain(journal.path).rows == 3
        os.truncate(journal.path, 0)
        assert journal.append("checkpoint", {"checkpointId": "anew"}).index == 0
        assert journal.append("checkpoint", {"checkpointId": "anew"}).index == 1
    assert check_chain(journal.path).rows == 2


@pytest.mark.parametrize(
    "elapsed", ["0.000001", "9.999999", "10.000000", "123456789.123456", "1234567890.123456"]
)
def test_long_and_short_durations_are_read_alike(tmp_path: Path, elapsed: str) -> None:
    with EventJournal("r", tmp_path) as journal:
        journal.append("checkpoint", {"checkpointId": "1"})
    line = journal.path.read_bytes()
    start = line.index(b'"elapsed_s":') + len(b'"elapsed_s":')
    journal.path.write_bytes(line[:start] + elapsed.encode() + b"}\n")
    assert check_chain(journal.path).reason is None
    for wrong in (b"00.000001", b"0.00001", b"0.0000010", b"-0.000001", b"1e-6", b"01.000000", b""):
        journal.path.write_bytes(line[:start] + wrong + b"}\n")
        assert check_chain(journal.path).reason in {"not_a_row", "not_json"}, wrong


def test_the_fast_way_takes_what_the_slow_way_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EventJournal("r", tmp_path) as journal:
        for n in range(3):
            journal.append("model.call", {"a": [n, "ü"], "payload_hash": '","payload":{'}, "s/x")
    good, chance = journal.path.read_bytes(), random.Random(3)
    places = [chance.randrange(len(good)) for _ in range(1500)]
    changed = [good[:p] + bytes([chance.randrange(256)]) + good[p + 1 :] for p in places]
    for data in [good, good[:-1], good.replace(b"\n", b"\r\n"), *changed]:
        journal.path.write_bytes(data)
        fast = check_chain(journal.path)
        with monkeypatch.context() as patch:
            patch.setattr("bernstein.chain.verify._fast", lambda *_: None)
            assert fast == check_chain(journal.path)


@pytest.mark.parametrize("odd", [b"{} ", b"{}\t", b"{}\r", b" {}"])
def test_a_payload_has_no_blanks_around_it(tmp_path: Path, odd: bytes) -> None:
    hashed = payload_hash("checkpoint", "", odd)
    chained = event_hash(GENESIS, "checkpoint", hashed, 0)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(
        b'{"index":0,"event":"checkpoint","lane":"","payload":%b,"payload_hash":"%b","prev_hash":"%b",'
        b'"event_hash":"%b","ts":"2026-11-30T00:00:00.000000Z","elapsed_s":0.000000}\n'
        % (odd, hashed.encode(), GENESIS.encode(), chained.encode())
    )
    assert check_chain(path).reason == "not_a_row"


def test_an_append_to_a_closed_journal_is_refused(tmp_path: Path) -> None:
    journal = EventJournal("r", tmp_path)
    journal.append("checkpoint", {})
    journal.close()
    with pytest.raises(JournalError, match="is closed"):
        journal.append("checkpoint", {})


def test_ctrl_c_while_threads_gather_for_an_fsync_hangs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EventJournal("r", tmp_path, durable=True) as journal:
        journal.append("checkpoint", {})
        with monkeypatch.context() as patch:
            patch.setattr(journal._sync, "_gather", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                journal.append("checkpoint", {})
        journal.append("checkpoint", {})
    assert check_chain(journal.path).rows == 3


def _interrupted() -> None:
    raise KeyboardInterrupt
