"""Requests of the coordinator of a campaign: progress, readers, further studies and decisions."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from maira.review.campaign import Action, Assign, Configure, Decide, Merge, Rename, action_adapter, read_campaign
from maira.review.changes import Review, validate
from maira.review.export import AdjudicationItem, collect_adjudication_items, decisions_csv, describe_reading
from maira.review.form import Form
from maira.review.images import describe_study
from maira.review.security import link_tokens
from maira.review.studies import read_campaign_set
from radfact.errors import InputError
from radfact.records import Record, validate_model

if TYPE_CHECKING:
    from maira.review.app import Server


@dataclass(frozen=True, slots=True)
class CampaignFile:
    """The campaign file of a running server."""

    path: Path
    image_folders: tuple[Path, ...]
    secret: str


class NewReader(Record):
    name: str


class Coordinator:
    """Handlers of the coordinator's requests; each runs in a thread."""

    def __init__(self, server: Server, file: CampaignFile, tokens: MutableMapping[str, str]) -> None:
        self.server = server
        self.store = server.store
        self.file = file
        self.tokens = tokens

    def overview(self, _: Request) -> Response:
        campaign, keys = self.store.campaign, self.store.reader_keys()
        reviews = {key: self.store.reviews(key) for key in keys}
        items = collect_adjudication_items(self.store)
        studies = []
        for number, draft in enumerate(self.store.drafts, 1):
            found, own = items.get(number, []), [key for key in keys if number in campaign.lists.get(key, ())]
            study = {"number": number, "sample_id": draft.sample_id, "arm": draft.arm, "is_training": draft.is_training}
            study["readers"] = {campaign.name(key): reviews[key][number - 1].status for key in own}
            disagreements = sum(item.is_disagreement for item in found)
            studies.append({**study, "disagreements": disagreements, "is_decided": self._is_decided(number, found)})
        return JSONResponse(
            {
                "paused": None in campaign.paused,
                "labels": campaign.config.labels,
                "severities": [[key, name] for key, name in campaign.form.severities.items() if key is not None],
                "readers": [self._reader(key, reviews[key]) for key in keys],
                "studies": studies,
                "history": [{"made": made, "action": self._describe(action)} for made, action in campaign.history],
            }
        )

    def study(self, request: Request) -> Response:
        number = request.path_params["number"]
        if not 1 <= number <= len(self.store.drafts):
            raise InputError(f"expected a study from 1 to {len(self.store.drafts)}, found {number}")
        draft, items = self.store.drafts[number - 1], collect_adjudication_items(self.store).get(number, [])
        _, decision = self.store.campaign.decisions.get(number, ("", None))
        states = {name: self.store.review(name, number).state for name in self.store.counted_readers()}
        comments = {name: state.comment for name, state in states.items() if state.done and state.comment}
        return JSONResponse(
            {
                "number": number,
                "sample_id": draft.sample_id,
                "arm": draft.arm,
                **describe_study(self.server.set, number),
                "reference": [sentence.text for sentence in self.server.set.reference(number)],
                "items": [_item_json(item, self.store.form) for item in items],
                "comments": comments,
                "decision": decision and {"severities": decision.severities, "comment": decision.comment},
            }
        )

    def apply_action(self, request: Request, body: Any) -> Response:
        action = validate(action_adapter, body)
        if action.kind in ("configure", "form", "assign"):
            raise InputError("settings and assignment are changed in the campaign file", field="kind")
        if isinstance(action, Decide):
            items = collect_adjudication_items(self.store).get(action.study, ())
            if action.severities.keys() != {item.id for item in items if item.is_disagreement}:
                hint = "reload the page, readers may have changed the study"
                raise InputError(f"expected a decision on each disagreement; {hint}", field="severities")
            self.store.form.clean({"severity": max(action.severities.values(), key=lambda severity: severity or 0)})
        self.store.apply_action(action)
        return self._updated(request)

    def add_reader(self, request: Request, body: Any) -> Response:
        self.store.add_reader(validate_model(NewReader, body).name)
        return self._updated(request)

    def add_studies(self, request: Request, body: Any) -> Response:
        """Respond to `POST /api/campaign/studies`: read the files again, and assign what is new."""
        if body != {}:
            raise InputError("expected no fields")
        settings = read_campaign(self.file.path)
        self.store.campaign.config.check_same(settings, self.file.path)
        review_set = read_campaign_set(settings, self.file.image_folders)
        self.store.check_drafts(review_set.drafts)
        # First the images and drafts, because readers open new studies as soon as they are assigned.
        self.server.set = review_set
        self.store.set_up(settings, review_set.drafts)
        return self._updated(request)

    def decisions(self, _: Request) -> Response:
        headers = {"content-disposition": 'attachment; filename="decisions.csv"'}
        return Response(decisions_csv(self.store).encode("utf-8-sig"), headers=headers, media_type="text/csv")

    def _updated(self, request: Request) -> Response:
        tokens = link_tokens(self.file.secret, self.store.reader_keys(), has_coordinator=True)
        for reader in self.tokens.keys() - tokens.keys():
            del self.tokens[reader]
        self.tokens.update(tokens)
        return self.overview(request)

    def _reader(self, key: str, reviews: Sequence[Review]) -> dict[str, Any]:
        campaign = self.store.campaign
        statuses = [reviews[number - 1].status for number in campaign.lists.get(key, ())]
        return {
            "id": key,
            "name": campaign.name(key),
            "studies": len(statuses),
            "finished": statuses.count("done"),
            "started": statuses.count("started"),
            "paused": key in campaign.paused,
            "excluded": campaign.excluded.get(key),
            "token": self.tokens.get(key),
        }

    def _is_decided(self, number: int, items: Sequence[AdjudicationItem]) -> bool:
        """Return whether a decision covers all disagreements of a study, also those since then."""
        _, decision = self.store.campaign.decisions.get(number, ("", None))
        return decision is not None and all(item.id in decision.severities for item in items if item.is_disagreement)

    def _describe(self, action: Action) -> str:
        name = self.store.campaign.name
        match action:
            case Configure():
                return "settings read from the campaign file"
            case Assign():
                return "assigned: " + ", ".join(
                    f"{len(own)} to {name(reader)}" for reader, own in action.studies.items()
                )
            case Decide():
                return f"decided study {action.study}"
            case Rename():
                return f"renamed {action.reader} to {action.name}"
            case Merge():
                return f"merged {name(action.reader)} into {name(action.into)}"
            case _:
                fields = action.model_dump(exclude={"kind"}, exclude_none=True)
                values = [name(value) if key in ("reader", "into") else value for key, value in fields.items()]
                return f"{action.kind}: {', '.join(values) or 'all readers'}"


def _item_json(item: AdjudicationItem, form: Form) -> dict[str, Any]:
    return {
        "id": item.id,
        "draft_text": item.draft_text,
        "draft_boxes": next(iter(item.readings.values())).draft_boxes,
        "is_disagreement": item.is_disagreement,
        "readings": [
            {
                "reader": reader,
                "reading": describe_reading(sentence, form),
                "severity": sentence.severity if sentence.is_correction else None,
                "text": sentence.text,
                "boxes": sentence.boxes,
                "error_type": form.option_names.get(sentence.error_type or "", sentence.error_type),
                "comment": sentence.answers.get("comment") or "",
            }
            for reader, sentence in item.readings.items()
        ],
    }
