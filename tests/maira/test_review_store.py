"""The database of a review: saved changes stay in order, separately for each reader."""

import os
import shutil
import signal
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urljoin

import pytest
from error_checks import full_disk, raises
from httpx import Client, TransportError
from hypothesis import given
from hypothesis import strategies as st
from review_files import CASES, CORNERS, REPORT, change, new_store, start_server, write_set
from waiting import PATIENCE

from maira.review.changes import Add, Change, Delete, Review, UnfinishedError, change_adapter, initial_state
from maira.review.form import default_form
from maira.review.store import ConflictError, Store
from maira.review.studies import read_review_drafts
from radfact.errors import InputError, RunError
from radfact.io.jsonl import dumps


def first(review: Review) -> Any:
    return review.state.sentences[0]


def test_what_differs_from_the_draft_is_a_correction(store: Store) -> None:
    review = store.review("Ada", 1)
    assert (review.version, review.state.step, review.state.corrections) == (0, 1, ())
    sentence = first(change(store, "edit", sentence="d0", text="  The heart is enlarged.  "))
    assert (sentence.text, sentence.draft_text) == ("The heart is enlarged.", "The heart size is normal.")
    for kind, fields, corrections in CASES["numbers of corrections"]:
        assert len(change(store, kind, sentence="d0", **fields).state.corrections) == corrections, kind
    (added,) = change(store, "add", text="Rib fracture.", boxes=[CORNERS]).state.corrections
    assert added.is_added
    assert change(store, "delete", sentence=added.id).state.corrections == ()
    change(store, "assess", sentence="d0", severity=2, error_type="OMISSION")
    answers = first(change(store, "assess", sentence="d0", comment="seen on the lateral")).answers
    assert answers == {"severity": 2, "error_type": "OMISSION", "comment": "seen on the lateral"}
    assert first(change(store, "assess", sentence="d0", severity=None)).severity is None
    assert [review.version for review in store.reviews("Ada")] == [11, 0]
    assert store.review("Ben", 1).version == 0


def test_finishing_requires_all_steps_and_severities(store: Store) -> None:
    for step, missing in ((4, r": 2 \(Correct\), 3 \(Compare\)$"), (2, r": 3 \(Compare\)$")):
        change(store, "step", step=step)
        with pytest.raises(UnfinishedError, match=missing):
            change(store, "finish")
    change(store, "step", step=3)
    with raises("step: invalid-value"):
        change(store, "step", step=5)
    # What was seen stays seen, wherever the reader is now.
    assert sorted(change(store, "undo").visited) == [1, 2, 3, 4]
    change(store, "delete", sentence="d0")
    with pytest.raises(UnfinishedError):
        change(store, "finish")
    change(store, "assess", sentence="d0", severity=2)
    assert change(store, "finish").state.done
    with raises("invalid-value"):
        change(store, "restore", sentence="d0")
    change(store, "reopen")
    assert not first(change(store, "restore", sentence="d0")).deleted


@pytest.mark.parametrize("fields", CASES["impossible changes"])
def test_an_impossible_change_leaves_no_trace(tmp_path: Path, fields: dict[str, Any]) -> None:
    # A sentence of the draft that is too long can be shortened.
    with closing(new_store(tmp_path, {"one": [{"text": "a" * 5000}, *REPORT]})) as store:
        before = store.review("Ada", 1)
        if fields.get("sentence") == "d1":
            before = change(store, "delete", sentence="d1")
        with pytest.raises(InputError) as caught:
            change(store, **{name: "a" * value if isinstance(value, int) else value for name, value in fields.items()})
        assert "\n" not in str(caught.value)
        assert store.review("Ada", 1) == before
        assert len(first(change(store, "edit", sentence="d0", text="a" * 4999)).text) == 4999


def test_invalid_changes_are_refused() -> None:
    for fields in (*CASES["invalid changes"], {"kind": "add", "text": "many", "boxes": [[0, 0, 1, 1]] * 101}):
        with pytest.raises(ValueError, match="validation error"):
            change_adapter.validate_python(fields)


@pytest.mark.parametrize("text", ["Nodule\0\x1b.", "Nodule\ud800.", " \x7fNodule. ", "\r\u202eNod\u2069ule.\ufeff\r\n"])
def test_invisible_characters_are_removed_from_typed_text(store: Store, text: str) -> None:
    assert first(change(store, "edit", sentence="d0", text=text)).text == "Nodule."
    assert change(store, "add", text=text).state.sentences[-1].text == "Nodule."
    assert change(store, "comment", text=text).state.comment == "Nodule."


@pytest.mark.parametrize(("drafted_text", "typed"), CASES["retyped texts"])
def test_retyping_a_draft_is_no_correction(tmp_path: Path, drafted_text: str, typed: str) -> None:
    with closing(new_store(tmp_path, {"one": [{"text": drafted_text}]})) as store:
        change(store, "edit", sentence="d0", text="Other.")
        assert not first(change(store, "edit", sentence="d0", text=typed)).is_correction
        assert first(change(store, "edit", sentence="d0", text=f"{typed} Or not.")).is_correction


CHANGES: list[Change] = [change_adapter.validate_python(fields) for fields in CASES["changes"]]


@given(st.lists(st.sampled_from(CHANGES), max_size=25))
def test_everything_can_be_undone_and_redone(changes: list[Change]) -> None:
    draft = initial_state([("One.", ()), ("Two.", ())])
    review = Review((draft,))
    for action in changes:
        try:
            review.check(action, default_form())
        except InputError:
            continue
        review = review.after(action)
    undo, redo = CHANGES[-2:]
    while review.undone:
        review = review.after(redo)
    last, count = review.state, len(review.states) - 1
    for _ in range(count):
        review = review.after(undo)
    assert (review.state, review.can_undo) == (draft, False)
    for _ in range(count):
        review = review.after(redo)
    assert (review.state, review.undone) == (last, ())


def test_a_change_is_applied_once_and_to_the_current_state(store: Store) -> None:
    added, deleted = (Add(kind="add", text="Rib fracture."), Delete(kind="delete", sentence="d1"))
    once = store.add_change("Ada", 1, "change-1", 0, added)
    assert store.add_change("Ada", 1, "change-1", 0, added) == once
    with raises("id: duplicate"):
        store.add_change("Ben", 1, "change-1", 0, added)
    with pytest.raises(ConflictError):
        store.add_change("Ada", 1, "late", 0, deleted)
    assert (store.review("Ada", 1), len(once.state.sentences)) == (once, 3)


def test_a_review_resumes_and_servers_on_one_database_see_each_other(store: Store) -> None:
    change(store, "add", text="Rib fracture.")
    change(store, "assess", sentence="a0", error_type="LATERALITY: swapped")
    change(store, "delete", sentence="d0")
    before = change(store, "undo")
    with closing(Store(store.path, store.drafts)) as again:
        assert again.review("Ada", 1) == before
        assert again.readers() == ["Ada", "Ben"]
        assert again.error_types()[-1] == "LATERALITY: swapped"
        change(again, "delete", sentence="d0")
        assert first(store.review("Ada", 1)).deleted
        assert change(store, "undo") == again.review("Ada", 1)


@pytest.mark.parametrize("name", ["ada", "ADA", "Ada\u200b", "\u202eAda", "Ａｄａ", " Ada "])
def test_names_that_look_equal_are_one_reader(store: Store, name: str) -> None:
    store.add_reader(name)
    assert store.readers() == ["Ada", "Ben"]
    change(store, "delete", reader=name, sentence="d0")
    assert store.review("Ada", 1).version == store.review(name, 1).version == 1
    assert [review.version for review in store.reviews(name)] == [1, 0]


@pytest.mark.parametrize(
    "sentences", [{"one": 2, "two": 1}, {"one": 2}, {"one": 2, "two": 2, "six": 2}, {"two": 2, "one": 2}]
)
def test_a_review_of_other_drafts_is_unchanged(store: Store, tmp_path: Path, sentences: dict[str, int]) -> None:
    change(store, "delete", sentence="d0")
    store.close()
    before = store.path.read_bytes()
    with raises("review.sqlite: mismatch"):
        reports = {name: REPORT[:count] for name, count in sentences.items()}
        Store(store.path, read_review_drafts(write_set(tmp_path, reports)[0]))
    assert store.path.read_bytes() == before


def test_another_file_is_refused_as_review_and_none_is_made_without_drafts(tmp_path: Path) -> None:
    text, database = tmp_path / "notes.txt", tmp_path / "other.sqlite"
    text.write_text("Notes. " * 1000)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE drafts (number INTEGER)")
    for path in (text, database):
        before = path.read_bytes()
        for drafts in ([], None):
            with raises(f"{path.name}: invalid-format"):
                Store(path, drafts)
        assert path.read_bytes() == before
    with raises("none.sqlite: file-not-found"):
        Store(tmp_path / "none.sqlite")
    assert sorted(tmp_path.iterdir()) == [text, database]


def test_an_older_layout_is_read_as_it_is_and_upgraded_for_writing(store: Store, tmp_path: Path) -> None:
    change(store, "delete", sentence="d0")
    path, answers = tmp_path / "old.sqlite", {"severity": 2, "error_type": "OMISSION", "comment": "Seen."}
    assessed = dumps({"kind": "assess", "sentence": "d0", **answers})
    with closing(sqlite3.connect(store.path)) as connection:
        copied = "'change-2', reader, study, sample_id, 1, made, ?"
        connection.execute(f"INSERT INTO changes SELECT NULL, {copied} FROM changes", [assessed])
        connection.commit()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(CASES["old layout"])
        connection.execute("ATTACH ? AS new", [str(store.path)])
        connection.execute("INSERT INTO drafts SELECT number, sample_id, digest, draft FROM new.drafts")
        connection.execute("INSERT INTO reviewers SELECT * FROM new.readers")
        connection.execute("INSERT INTO changes SELECT * FROM new.changes")
        connection.commit()
    before = path.read_bytes()
    with closing(Store(path)) as old:
        assert (old.readers(), old.review("Ada", 1)) == (store.readers(), store.review("Ada", 1))
        assert [(draft.arm, draft.is_training) for draft in old.drafts] == [("", False)] * 2
        assert first(old.review("Ada", 1)).answers == answers
    with raises("old.sqlite: mismatch"):
        Store(path, store.drafts[:1])
    assert path.read_bytes() == before
    for version in (2, 3):
        with closing(Store(path, store.drafts)) as upgraded:
            assert upgraded.review("Ada", 1).version == version
            change(upgraded, "undo" if version == 2 else "redo")
    with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(store.path)) as new:
        schema = "SELECT type, name, tbl_name FROM sqlite_master ORDER BY name"
        assert connection.execute(schema).fetchall() == new.execute(schema).fetchall()
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        with pytest.raises(sqlite3.IntegrityError, match="for good"):
            connection.execute("DELETE FROM changes")


@contextmanager
def as_anybody(folder: Path) -> Iterator[None]:
    """As a user for whom the rights of files hold: for root they do not."""
    if os.geteuid() != 0:
        yield
        return
    for path in (folder, *folder.iterdir()):
        os.chown(path, 65534, 65534)
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def test_a_read_only_review_is_exported_and_not_continued() -> None:
    # Other users reach this folder as well.
    with TemporaryDirectory() as name:
        shared = Path(name)
        with closing(new_store(shared, {"one": REPORT})) as store:
            change(store, "delete", sentence="d0")
            drafts = store.drafts
        assert stat.filemode(store.path.stat().st_mode) == "-rw-------"
        store.path.chmod(0o444)
        shared.chmod(0o555)
        with as_anybody(shared):
            with closing(Store(store.path)) as there:
                assert there.review("Ada", 1).version == 1
            with raises("review.sqlite: file-unreadable"):
                Store(store.path, drafts)
            with pytest.raises(OSError, match="Permission denied") as caught:
                Store(shared / "other.sqlite", drafts)
            assert caught.value.filename == str(shared / "other.sqlite")
            store.path.chmod(0)
            with pytest.raises(InputError, match="permission denied"):
                Store(store.path)


def test_an_incomplete_change_is_rolled_back(store: Store, tmp_path: Path) -> None:
    change(store, "delete", sentence="d0")
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        # So small a memory that the pages of the change are on disk before its end.
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO error_types (name, made) VALUES (?, '')", [(f"{n} {'a' * 500}",) for n in range(200)]
        )
        for path in tmp_path.glob("review.sqlite*"):
            shutil.copy(path, crashed)
        connection.execute("ROLLBACK")
    assert (crashed / "review.sqlite").read_bytes() != store.path.read_bytes()
    with closing(Store(crashed / "review.sqlite", store.drafts)) as recovered:
        assert recovered.review("Ada", 1) == store.review("Ada", 1)
        assert recovered.error_types() == store.error_types()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_change_is_not_applied_on_a_full_disk_or_in_a_deleted_file(store: Store, replaced: bool) -> None:
    with full_disk(0), pytest.raises(RunError, match="cannot be written"):
        change(store, "delete", sentence="d0")
    assert store.review("Ada", 1).version == 0
    assert change(store, "comment", text="Rotated.").version == 1
    content = store.path.read_bytes()
    store.path.unlink()
    if replaced:
        store.path.write_bytes(content)
    with raises("write-failed"):
        change(store, "delete", sentence="d0")
    assert store.review("Ada", 1).version == 1
    with raises("write-failed"):
        store.add_reader("Eve")


def test_a_file_is_append_only_read_without_events_and_refused_if_damaged_or_newer(store: Store) -> None:
    change(store, "delete", sentence="d0")
    store.close()
    with closing(sqlite3.connect(store.path)) as connection:
        for statement in ("DELETE FROM changes", "UPDATE changes SET change = '{}'"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)
        connection.executescript("DROP TABLE reading_events; DROP TABLE access")
        assert Store(store.path).events("Ada") == []
        other = '{"kind": "delete", "sentence": "d7"}'
        connection.executescript(f"DROP TRIGGER changes_stay; UPDATE changes SET change = '{other}'")
        with raises("review.sqlite: invalid-format"):
            Store(store.path)
        connection.executescript("PRAGMA user_version = 99")
        with raises("review.sqlite: unsupported-version"):
            Store(store.path)


def test_a_killed_server_loses_no_acknowledged_change(tmp_path: Path) -> None:
    write_set(tmp_path, {"one": REPORT})
    server, address, _ = start_server(tmp_path)
    # Somewhere between the writes of one of the changes to come.
    killer = threading.Thread(target=server.send_signal, args=[signal.SIGKILL])
    answered = 0
    try:
        with Client(base_url=urljoin(address, "/"), timeout=PATIENCE, trust_env=False) as browser:
            browser.get(address)
            browser.post("/api/readers", json={"name": "Ada"})
            for version in range(100_000):
                added = {"kind": "add", "text": f"Finding {version}."}
                body = {"reader": "Ada", "id": f"change-{version}", "version": version, **added}
                answered = browser.post("/api/studies/1/changes", json=body).json()["state"]["version"]
                if version == 20:
                    killer.start()
    except TransportError:
        killer.join()
    finally:
        server.kill()
        server.communicate()
    assert answered > 20
    with closing(Store(tmp_path / "review.sqlite", read_review_drafts(tmp_path / "drafts.jsonl"))) as store:
        texts = [sentence.text for sentence in store.review("Ada", 1).state.sentences if sentence.is_added]
    # The last may be on disk without its answer.
    assert len(texts) - answered in (0, 1)
    assert texts == [f"Finding {number}." for number in range(len(texts))]
