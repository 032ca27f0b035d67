"""Campaigns: their file, the assignment of studies, what readers see, and the coordinator's requests."""

import csv
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from error_checks import raises
from long_values import DATA
from maira_command import maira
from review_desk import ADDRESS, open_campaign
from review_files import CASES, REPORT, change, finish, write_set
from starlette.testclient import TestClient

from maira.review.campaign import Exclude, read_campaign
from maira.review.export import decisions_csv, rating_table
from maira.review.reader_study import read_margins
from maira.review.security import COORDINATOR
from maira.review.store import SavingBlockedError, Store
from maira.review.studies import read_campaign_set, read_studies
from maira.review.summary import summarize
from radfact.errors import InputError, RunError
from radfact.io.jsonl import read_jsonl, write_jsonl

ARMS = ("secret-one", "secret-two")
SAMPLES = [f"s{number}" for number in range(13)]


def write_campaign(folder: Path, text: str, samples: list[str] = SAMPLES) -> Path:
    """Write a campaign of two arms, whose drafts differ in the text of the first sentence."""
    drafts, _ = write_set(folder, dict.fromkeys(samples, REPORT))
    for place, arm in enumerate(ARMS):
        draft = {"report": [{"text": f"Heart {place}."}, REPORT[1]], "model": f"model-{arm}"}
        write_jsonl(folder / f"{arm}.jsonl", [{"sample_id": key, **draft} for key in samples])
    drafts.unlink()
    path = folder / "campaign.yaml"
    path.write_text(f"manifest: manifest.jsonl\narms: {{{', '.join(f'{arm}: {arm}.jsonl' for arm in ARMS)}}}\n{text}")
    return path


def open_store(path: Path) -> Store:
    settings = read_campaign(path)
    return Store(path.with_name("review.sqlite"), read_campaign_set(settings).drafts, settings=settings)


def studies_of(store: Store, reader: str) -> list[tuple[str, str]]:
    drafts = [store.drafts[number - 1] for number in store.study_list(reader)]
    return [(draft.sample_id, draft.arm) for draft in drafts]


@pytest.mark.parametrize(("text", "expected"), CASES["campaign files"])
def test_an_invalid_campaign_file_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    path = write_campaign(tmp_path, text)
    with pytest.raises(InputError, match=rf"campaign.yaml(:\d+)?: {expected}"):
        read_campaign(path)


def test_arms_need_the_same_samples(tmp_path: Path) -> None:
    path = write_campaign(tmp_path, "readers: [Ada]")
    rows = [row for _, row in read_jsonl(tmp_path / "secret-two.jsonl")]
    for changed in (rows[1:], [*rows, {**rows[0], "sample_id": "extra"}]):
        write_jsonl(tmp_path / "secret-two.jsonl", changed)
        with raises("arms: secret-two: mismatch"):
            read_campaign_set(read_campaign(path))


def test_overlapping_studies_are_balanced_over_readers_and_arms(tmp_path: Path) -> None:
    text = "readers: [Ada, Bo]\nassignment: overlap\noverlap: 0.5\nseed: 3\ntraining_cases: [s4]\n"
    path = write_campaign(tmp_path, text)
    with closing(open_store(path)) as store:
        lists = {reader: studies_of(store, reader) for reader in store.readers()}
        read = Counter(sample for studies in lists.values() for sample, _ in studies)
        assert sorted(read.values()) == [1] * 6 + [2] * 7
        for reader, studies in lists.items():
            assert studies[0] == ("s4", ARMS[0])
            counts = Counter(arm for _, arm in studies[1:])
            assert max(counts.values()) - min(counts.values()) <= 1, reader
        # Each shared study is read in both arms.
        ada, bo = (dict(lists[reader][1:]) for reader in ("Ada", "Bo"))
        assert all(ada[sample] != bo[sample] for sample in ada.keys() & bo.keys())
        assert [sample for sample, _ in lists["Ada"]] != sorted(sample for sample, _ in lists["Ada"])
    with closing(open_store(path)) as again:
        assert {reader: studies_of(again, reader) for reader in again.readers()} == lists


def test_a_reader_of_all_arms_meets_a_study_again_as_late_as_possible(tmp_path: Path) -> None:
    path = write_campaign(tmp_path, "readers: [Ada]\narms_per_reader: all")
    with closing(open_store(path)) as store:
        studies = studies_of(store, "Ada")
    assert len(set(studies)) == 26
    assert [sample for sample, _ in studies[:13]] == [sample for sample, _ in studies[13:]]


def test_the_reference_report_is_an_arm_that_is_not_shown_as_reference(tmp_path: Path) -> None:
    path = write_campaign(tmp_path, "readers: [Ada]")
    path.write_text(path.read_text().replace("secret-two.jsonl", "reference"))
    settings = read_campaign(path)
    review_set = read_campaign_set(settings)
    assert review_set.drafts[1].sentences[0].text == "The heart is enlarged."
    assert review_set.reference(1) == []
    with closing(open_store(path)) as store:
        for number in (1, 2):
            finish(store, number)
        studies = read_studies(settings.manifest, SAMPLES, path)
        # Metrics compare drafts with the reference, and find the reference perfect.
        assert [row[3] for row in rating_table(store, studies, ["Ada"]).rows] == ["secret-one"]


def test_readers_and_studies_are_added_after_those_there(tmp_path: Path) -> None:
    path = write_campaign(tmp_path, "readers: [Ada]\nassignment: split", SAMPLES[:4])
    with closing(open_store(path)) as store:
        before = store.study_list("Ada")
        change(store, "delete", before[0], sentence="d0")
    write_campaign(tmp_path, "readers: [Ada, Bo]\nassignment: split\ninstructions: Read.", SAMPLES)
    with closing(open_store(path)) as store:
        ada, bo = store.study_list("Ada"), store.study_list("Bo")
        assert ada[:4] == before
        assert store.review("Ada", before[0]).version == 1
        # The new reader gets more of the new studies.
        assert (len(ada), len(bo)) == (7, 6)
        assert not set(ada) & set(bo)
    write_campaign(tmp_path, "readers: [Ada]\nassignment: split\nseed: 8", SAMPLES)
    with raises("review.sqlite: seed: mismatch"):
        open_store(path)


def test_a_campaign_and_a_plain_review_do_not_share_a_file(tmp_path: Path) -> None:
    path = write_campaign(tmp_path, "readers: [Ada]")
    with closing(open_store(path)) as store:
        drafts = store.drafts
    with raises("review.sqlite: mismatch"):
        Store(path.with_name("review.sqlite"), drafts)
    with closing(Store(tmp_path / "plain.sqlite", drafts)) as plain:
        plain.add_reader("Ada")
    with raises("plain.sqlite: mismatch"):
        Store(tmp_path / "plain.sqlite", drafts, settings=read_campaign(path))


class Desk:
    """A campaign with the browsers of its readers and its coordinator."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store, self.app, self.tokens = open_campaign(path)
        self.coordinator = self.browser(self.tokens[COORDINATOR])

    def browser(self, token: str) -> TestClient:
        browser = TestClient(self.app, base_url=ADDRESS)
        assert browser.get("/", params={"token": token}).status_code == 200
        return browser

    def reader(self, name: str) -> TestClient:
        return self.browser(self.tokens[name])

    def act(self, kind: str, *, status: int = 200, **fields: Any) -> Any:
        answer = self.coordinator.post("/api/campaign/actions", json={"kind": kind, **fields})
        assert answer.status_code == status, answer.text
        return answer.json()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    text = "readers: [Ada, Bo]\ntraining_cases: [s0]\ninstructions: Read all."
    with closing((desk := Desk(write_campaign(tmp_path, text, SAMPLES[:5]))).store):
        yield desk


def delete(browser: TestClient, reader: str, place: int) -> Any:
    body = {"reader": reader, "id": "a-deletion", "version": 0, "kind": "delete", "sentence": "d0"}
    return browser.post(f"/api/studies/{place}/changes", json=body)


def test_nothing_sent_to_a_reader_names_arm_or_model(desk: Desk) -> None:
    browser = desk.reader("Ada")
    about = browser.get("/api/set").json()
    assert (about["studies"], about["instructions"], about["exports"]) == (5, "Read all.", [])
    delete(browser, "Ada", 1)
    labels = set()
    responses = [browser.get(path, params={"reader": "Ada"}) for path in ("/api/set", "/api/studies", "/")]
    for place in range(1, 6):
        paths = (f"/api/studies/{place}", f"/api/studies/{place}/counterparts", f"/images/{place}/frontal")
        responses += [browser.get(path, params={"reader": "Ada"}) for path in paths]
        study = responses[-3].json()
        labels.add(study["label"])
        assert (study["number"], study["is_training"]) == (place, place == 1)
        assert study["images"]["frontal"]["url"] == f"/images/{place}/frontal"
    for path in ("corrections.csv", "drafts.jsonl", "summary.json", "decisions.csv"):
        responses.append(browser.get(f"/export/{path}", params={"reader": "Ada"}))
    assert [answer.status_code for answer in responses[-4:]] == [404, 404, 404, 403]
    for answer in responses:
        sent = answer.content.decode("latin-1") + json.dumps(dict(answer.headers))
        assert "secret" not in sent
        assert "model-" not in sent
    assert labels == {"A", "B"}
    assert browser.get("/api/studies/6", params={"reader": "Ada"}).status_code == 404
    assert browser.get("/images/6/frontal").status_code == 404


def test_links_separate_readers_and_coordinator(desk: Desk) -> None:
    for path in ("", "/studies/1"):
        assert desk.reader("Ada").get(f"/api/campaign{path}").status_code == 403
    for path in ("actions", "readers", "studies"):
        assert desk.reader("Ada").post(f"/api/campaign/{path}", json={}).status_code == 403
    assert desk.coordinator.get("/api/set").status_code == 403
    assert desk.coordinator.get("/api/studies", params={"reader": "Ada"}).status_code == 403
    assert delete(desk.coordinator, "Ada", 1).status_code == 403
    assert "Campaign" in desk.coordinator.get("/").text
    assert "Campaign" not in desk.reader("Ada").get("/").text


def test_a_paused_reader_cannot_save(desk: Desk) -> None:
    browser = desk.reader("Ada")
    for reader in (None, "Ada"):
        desk.act("pause", reader=reader)
        answer = delete(browser, "Ada", 1)
        assert (answer.status_code, answer.json()["error"]) == (503, "the coordinator has paused the campaign")
        with pytest.raises(SavingBlockedError):
            change(desk.store, "delete", desk.store.study_list("Ada")[0], sentence="d0")
        desk.act("resume", reader=reader)
    desk.act("pause", reader="Bo")
    assert delete(browser, "Ada", 1).status_code == 200


def test_an_excluded_reader_stays_in_the_data_and_not_in_statistics(desk: Desk) -> None:
    number = desk.store.study_list("Bo")[1]
    change(desk.store, "delete", number, "Bo", sentence="d0")
    finish(desk.store, number, "Bo")
    desk.act("exclude", reader="Bo", reason="Left.")
    assert desk.store.readers() == ["Ada", "Bo"]
    assert list(summarize(desk.store, desk.store.counted_readers())["readers"]) == ["Ada"]
    # Five studies are assigned, of ten drafts; one is a training case.
    statistics = summarize(desk.store, ["Bo"])["readers"]["Bo"]
    assert (statistics["finished"], statistics["assigned"]) == (1, 4)
    assert delete(desk.reader("Bo"), "Bo", 1).status_code == 503
    desk.act("include", reader="Bo")
    assert desk.store.counted_readers() == ["Ada", "Bo"]


def test_a_renamed_reader_keeps_link_and_work(desk: Desk) -> None:
    browser = desk.reader("Ada")
    delete(browser, "Ada", 1)
    desk.act("rename", reader="Ada", name="Bo", status=400)
    desk.act("rename", reader="Ada", name="Ada Byron")
    assert browser.get("/api/set").json()["reader"] == "Ada Byron"
    for name in ("Ada", "Ada Byron"):
        assert browser.get("/api/studies", params={"reader": name}).json()[0]["corrections"] == 1
    assert desk.store.readers() == ["Ada Byron", "Bo"]
    with closing(Store(desk.store.path)) as again:
        assert again.registered_name("ada") == "Ada Byron"


def test_a_merged_reader_gives_their_work(desk: Desk) -> None:
    store = desk.store
    (_, one, two, *_), bo = store.study_list("Ada"), store.study_list("Bo")
    change(store, "delete", one, "Ada", sentence="d0")
    change(store, "delete", two, "Ada", sentence="d0")
    change(store, "comment", one, "Bo", text="My own.")
    old_link = desk.reader("Ada")
    desk.act("merge", reader="Ada", into="Ada", status=400)
    desk.act("merge", reader="Ada", into="Bo")
    assert store.readers() == ["Bo"]
    assert store.study_list("Bo")[: len(bo)] == bo
    assert (store.review("Bo", one).state.comment, store.review("Bo", two).version) == ("My own.", 1)
    assert change(store, "undo", two, "Bo").version == 2
    assert [review.version for review in store.reviews("Bo")].count(2) == 1
    # A page of the merged reader would number studies in another way.
    assert old_link.get("/api/studies/1", params={"reader": "Ada"}).status_code == 401


def test_readers_and_studies_are_added_on_the_page(desk: Desk) -> None:
    answer = desk.coordinator.post("/api/campaign/readers", json={"name": "Cy"}).json()
    (token,) = [reader["token"] for reader in answer["readers"] if reader["name"] == "Cy"]
    browser = desk.browser(token)
    assert len(browser.get("/api/studies", params={"reader": "Cy"}).json()) == 5
    write_campaign(desk.path.parent, "readers: [Ada, Bo]\ntraining_cases: [s0]\ninstructions: Read all.", SAMPLES[:7])
    assert desk.coordinator.post("/api/campaign/studies", json={}).status_code == 200
    assert len(browser.get("/api/studies", params={"reader": "Cy"}).json()) == 7
    assert browser.get("/images/7/frontal").status_code == 200
    assert len(desk.store.drafts) == 14


def test_disagreements_are_decided_and_exported(tmp_path: Path) -> None:
    desk = Desk(write_campaign(tmp_path, "readers: [Ada, Bo]\narms_per_reader: all", SAMPLES[:1]))
    with closing(desk.store) as store:
        change(store, "delete", 1, "Ada", sentence="d0")
        change(store, "delete", 1, "Ada", sentence="d1")
        change(store, "delete", 1, "Bo", sentence="d1")
        change(store, "add", 1, "Bo", text="Rib fracture.")
        finish(store, 1, "Ada", severity=2)
        assert [study["disagreements"] for study in desk.coordinator.get("/api/campaign").json()["studies"]] == [0, 0]
        finish(store, 1, "Bo", severity=2)
        (study, _) = desk.coordinator.get("/api/campaign").json()["studies"]
        assert (study["disagreements"], study["is_decided"]) == (2, False)
        items = desk.coordinator.get("/api/campaign/studies/1").json()["items"]
        assert [[item["id"], item["is_disagreement"]] for item in items] == DATA["disagreements"]
        desk.act("decide", study=1, severities={"d0": None}, status=400)
        overview = desk.act("decide", study=1, severities={"d0": None, "Bo/a1": 1}, comment="Seen.")
        assert overview["studies"][0]["is_decided"]
        rows = list(csv.DictReader(StringIO(decisions_csv(store))))
        fields = [[row["arm"], row["item"], row["readings"], row["needs_correction"], row["severity"]] for row in rows]
        assert fields == DATA["decisions"]
        # A study that is changed afterwards is open again.
        change(store, "reopen", 1, "Ada")
        change(store, "add", 1, "Ada", text="Pneumothorax.")
        finish(store, 1, "Ada")
        assert not desk.coordinator.get("/api/campaign").json()["studies"][0]["is_decided"]


def test_impossible_actions_are_refused(desk: Desk) -> None:
    before = len(desk.store.campaign.history)
    for action in CASES["impossible actions"]:
        desk.act(status=400, **action)
    assert len(desk.store.campaign.history) == before


@pytest.mark.parametrize(("text", "readers", "expected"), CASES["one reader per report"])
def test_two_readers_of_two_arms_share_no_report(tmp_path: Path, text: str, readers: int, expected: bool) -> None:
    names = ["Ada", "Bo", "Cy"][:readers]
    path = write_campaign(tmp_path, f"readers: [{', '.join(names)}]\n{text}")
    assert read_campaign(path).has_one_reader_per_report(readers) == expected
    with closing(open_store(path)) as store:
        counts = Counter(number for name in names for number in store.study_list(name))
        assert (expected, max(counts.values()) > 1) in ((True, False), (False, "split" not in text and readers > 1))


def test_the_margin_of_a_campaign_is_for_its_baseline_and_outcome(tmp_path: Path) -> None:
    text = "readers: [Ada]\nanalysis: {baseline: secret-two, outcome: significant, margin: 0.05}"
    with closing(open_store(write_campaign(tmp_path, text))) as store:
        arms, [margin], _ = read_margins(store, None, ())
        assert (arms, margin.outcome) == (("secret-two", "secret-one"), "significant")
        assert margin.origin == "in the campaign, before the readings"
        arms, [margin], _ = read_margins(store, "secret-one", ())
        assert arms == ("secret-one", "secret-two")
        assert margin.origin.endswith("its baseline is another")


@pytest.mark.parametrize("seed", range(4))
def test_added_studies_of_all_readers_are_balanced_over_pairs_of_reader_and_arm(tmp_path: Path, seed: int) -> None:
    text = f"readers: [Ada, Bo]\nassignment: overlap\noverlap: 0.5\nseed: {seed}"
    # Of the first five studies, the readers have different numbers.
    open_store(write_campaign(tmp_path, text, SAMPLES[:5])).close()
    with closing(open_store(write_campaign(tmp_path, text, SAMPLES))) as store:
        ada, bo = (dict(studies_of(store, reader)) for reader in ("Ada", "Bo"))
        assert len(ada.keys() & bo.keys()) == 6
        assert all(ada[sample] != bo[sample] for sample in ada.keys() & bo.keys())


def test_a_failed_addition_of_studies_leaves_the_campaign_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Store) -> None:
        raise RunError("disk full")

    with closing(open_store(write_campaign(tmp_path, "readers: [Ada]", SAMPLES[:4]))) as store:
        lists = store.study_list("Ada")
        settings = read_campaign(write_campaign(tmp_path, "readers: [Ada]\ninstructions: Other.", SAMPLES))
        monkeypatch.setattr(Store, "_assign", fail)
        with pytest.raises(RunError):
            store.set_up(settings, read_campaign_set(settings).drafts)
        # Without its campaign, a reader would see all studies and the arms.
        assert (store.campaign.settings.instructions, store.study_list("Ada"), len(store.drafts)) == ("", lists, 8)


def test_studies_of_a_split_wait_for_an_active_reader(tmp_path: Path) -> None:
    path = write_campaign(tmp_path, "readers: [Ada]\nassignment: split", SAMPLES[:2])
    with closing(open_store(path)) as store:
        store.apply_action(Exclude(kind="exclude", reader="Ada", reason="Left."))
    with closing(open_store(write_campaign(tmp_path, "readers: [Ada]\nassignment: split", SAMPLES[:4]))) as store:
        assert len(store.study_list("Ada")) == 2
        store.add_reader("Bo")
        assert {sample for sample, _ in studies_of(store, "Bo")} == set(SAMPLES[2:4])


def test_the_file_of_a_campaign_names_manifest_and_readers(tmp_path: Path) -> None:
    path = write_campaign(tmp_path, "readers: [Ada]")
    for options in (["--manifest", "manifest.jsonl"], ["--reader", "Ada"]):
        with raises("invalid-option"):
            maira("review", path, *options)
    assert not (tmp_path / "review.sqlite").exists()
