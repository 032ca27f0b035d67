"""What the offline judge and splitter read: scope, sides, exchange, doubt, alternatives, and even removal."""

from __future__ import annotations

import pytest

from radfact.judges import EntailmentQuery, split_narrative
from radfact.judges.offline import OfflineJudge
from radfact.reader.facts import parse_sentence

JUDGE = OfflineJudge()


def entails(premise: str, hypothesis: str) -> bool:
    return JUDGE.judge_one(EntailmentQuery((premise,), hypothesis)).status == "entailment"


@pytest.mark.parametrize(
    ("premise", "finding"),
    [
        ("Evaluation of the lung bases for effusion is degraded by motion.", "pleural effusion"),
        ("The study is limited for small nodules.", "nodule"),
        ("Unable to assess for consolidation behind the heart.", "consolidation"),
        ("Free air cannot be reliably evaluated.", "pneumoperitoneum"),
        ("Sensitivity for rib fractures is reduced.", "rib fracture"),
        ("MRI may help to exclude a mass.", "mass"),
        ("Repeat radiographs are needed to rule out pneumothorax, nodule or fracture.", "nodule"),
        ("Follow-up is recommended to ensure resolution of the infiltrate.", "infiltrate"),
        ("Please correlate clinically for pneumonia.", "pneumonia"),
        ("If there is concern for aspiration, a repeat film is advised.", "aspiration"),
        ("Does the patient have a nodule?", "nodule"),
        ("Right basal opacity, atelectasis?", "atelectasis"),
        ("Comparison is made with the CT obtained for a pulmonary nodule.", "nodule"),
        ("The patient has a history of pneumothorax.", "pneumothorax"),
        ("The patient was treated for pneumonia.", "pneumonia"),
        ("It is hard to entirely exclude a small effusion.", "pleural effusion"),
        ("A small nodule could be overlooked at the bases.", "nodule"),
        ("Retrocardiac pneumonia may go unnoticed.", "pneumonia"),
        ("Consolidation would be difficult to detect behind the heart.", "consolidation"),
        ("The film is not adequate for assessing rib fractures.", "rib fracture"),
        ("Small effusions are not evaluated.", "pleural effusion"),
        ("The nodule of the CT cannot be identified.", "nodule"),
        ("Rule out pneumothorax.", "pneumothorax"),
        ("Right effusion, r/o pneumonia.", "pneumonia"),
        ("If pain persists, look for rib fractures.", "rib fracture"),
        ("Reason for exam: dyspnea, heart failure.", "heart failure"),
        ("Left basal opacity, ?atelectasis.", "atelectasis"),
        ("The previous radiograph showed an effusion.", "pleural effusion"),
        ("Compared with the film of last week, which showed a pneumothorax, the lung is expanded.", "pneumothorax"),
        ("In the prior study an effusion was reported.", "pleural effusion"),
    ],
)
def test_what_is_looked_for_is_not_stated(premise: str, finding: str) -> None:
    assert not entails(premise, f"There is {finding}.")


@pytest.mark.parametrize(
    ("premise", "hypothesis"),
    [
        ("CT is recommended to evaluate the right apical nodule.", "There is a nodule."),
        ("Assessment for pneumothorax is limited by the pacemaker.", "There is a pacemaker."),
        ("Evaluation for effusion is limited, and there is a right apical mass.", "There is a mass."),
        ("The patient has a history of CABG.", "There is CABG."),
        ("A nodule is seen on the frontal view, but it is not seen on the lateral view.", "There is a nodule."),
        ("The tip of the endotracheal tube cannot be seen.", "There is an endotracheal tube."),
        ("The previous radiograph showed an effusion, which has decreased.", "There is pleural effusion."),
        ("CT is suggested for the left nodule.", "There is a left nodule."),
        ("The opacity is not as evident as before.", "There is an opacity."),
    ],
)
def test_what_is_stated_beside_it_is_read(premise: str, hypothesis: str) -> None:
    assert entails(premise, hypothesis)


@pytest.mark.parametrize(
    ("premise", "side", "other"),
    [
        ("The right lung apex is more opaque than the left.", "right opacity", "left opacity"),
        ("The left hilum is prominent compared with the right.", "left hilar enlargement", "right hilar enlargement"),
        ("The right hemidiaphragm is elevated relative to the left.", "right hemidiaphragm elevation",
         "left hemidiaphragm elevation"),
        ("The left costophrenic angle is blunted compared to the right side.", "left costophrenic angle blunting",
         "right costophrenic angle blunting"),
        ("Small right pneumothorax on the left lateral decubitus film.", "right pneumothorax", "left pneumothorax"),
        ("Right upper lobe scarring/atelectasis.", "right atelectasis", "left atelectasis"),
        ("Blunted right costophrenic angle, consistent with effusion.", "right effusion", "left effusion"),
        ("Left lower lobe consolidation and small effusion.", "left effusion", "right effusion"),
        ("Middle lobe granuloma.", "right granuloma", "left granuloma"),
        ("Left effusion with a small basal consolidation.", "left consolidation", "right consolidation"),
        ("Right pleural effusion with passive atelectasis.", "right atelectasis", "left atelectasis"),
        ("Opacity at the right base with tiny effusion.", "right effusion", "left effusion"),
        ("The left hemidiaphragm is elevated with streaky atelectasis.", "left atelectasis", "right atelectasis"),
        ("Right chest tube with residual apical pneumothorax.", "right pneumothorax", "left pneumothorax"),
        ("The left costophrenic angle is blunted by pleural fluid.", "left effusion", "right effusion"),
        ("Right basal opacity, which represents pneumonia.", "right pneumonia", "left pneumonia"),
        ("Left base opacity, a combination of fluid and atelectasis.", "left atelectasis", "right atelectasis"),
        ("Left base opacity, atelectasis and/or pneumonia.", "left pneumonia", "right pneumonia"),
        ("Faint density right apex, remaining lungs clear.", "right density", "left density"),
        ("Effusion on the left but not on the right.", "left effusion", "right effusion"),
        ("Nodule in the right lung and none on the left.", "right nodule", "left nodule"),
        ("Right but not left pleural effusion.", "right effusion", "left effusion"),
        ("Unlike on the right, there is an effusion on the left.", "left effusion", "right effusion"),
        ("In contrast to the clear left lung, the right lung shows consolidation.", "right consolidation",
         "left consolidation"),
        ("Moderate effusion on the left compared to the right.", "left effusion", "right effusion"),
        ("Small L effusion.", "left effusion", "right effusion"),
        ("R-sided chest tube.", "right chest tube", "left chest tube"),
        ("Lt. basilar opacity is present.", "left basilar opacity", "right basilar opacity"),
        ("R IJ line tip in the SVC.", "right jugular catheter", "left jugular catheter"),
        ("Rt. IJ line and Lt. PICC end in the SVC.", "right jugular catheter", "left jugular catheter"),
        ("R 5th rib fracture.", "right rib fracture", "left rib fracture"),
        ("Dr. L Smith was notified of the right pneumothorax.", "right pneumothorax", "left pneumothorax"),
    ],
)  # fmt: skip
def test_the_side_of_a_finding(premise: str, side: str, other: str) -> None:
    assert entails(premise, f"There is {side}.")
    assert not entails(premise, f"There is {other}.")


@pytest.mark.parametrize(
    "premise",
    ["Pleural effusions, R > L.", "Effusions (L<R).", "R and L effusions.", "Effusions are L greater than R."],
)
def test_compared_sides_both_have_the_finding(premise: str) -> None:
    assert entails(premise, "There is a right effusion.")
    assert entails(premise, "There is a left effusion.")


@pytest.mark.parametrize(
    "premise",
    [
        "Effusion after 2 L of fluid.",
        "Effusion; L spine fixation.",
        "Several L pleural fluid removed.",
        "Discussed with R Jones: effusion.",
    ],
)
def test_a_letter_that_is_no_side(premise: str) -> None:
    facts = parse_sentence(premise).facts
    assert facts
    assert all(side is None for fact in facts for side, _ in fact.places)


def test_a_comparison_of_sides_is_no_change_over_time() -> None:
    assert parse_sentence("The left base is denser than the right.").facts == ()


@pytest.mark.parametrize(
    ("premise", "gone", "present"),
    [
        ("Clearing of the left basal consolidation.", "consolidation", None),
        ("There has been interval clearing of the right effusion.", "pleural effusion", None),
        ("The dialysis catheter was replaced by a PICC.", "dialysis catheter", "PICC"),
        ("Interval exchange of the left PICC for a dialysis catheter.", "PICC", "dialysis catheter"),
        ("A tracheostomy has replaced the endotracheal tube.", "endotracheal tube", "tracheostomy"),
        ("A left port is now present instead of the PICC.", "PICC", "port"),
        ("A PICC now takes the place of the dialysis catheter.", "dialysis catheter", "PICC"),
        ("The chest tube has been withdrawn and the effusion has not returned.", "pleural effusion", None),
        ("The consolidation has given way to atelectasis.", "consolidation", "atelectasis"),
        ("The pulmonary edema has subsided.", "pulmonary edema", None),
        ("The left effusion has dissipated.", "pleural effusion", None),
    ],
)
def test_what_cleared_or_was_exchanged_is_gone(premise: str, gone: str, present: str | None) -> None:
    assert not entails(premise, f"There is a {gone}.")
    assert present is None or entails(premise, f"There is a {present}.")


@pytest.mark.parametrize(
    "premise",
    [
        "Partial clearing of the left opacity.",
        "The left opacity is clearing.",
        "The left opacity has not completely subsided.",
        "The left opacity has partially dissipated.",
        "The left opacity has somewhat subsided.",
        "The left opacity has not given way to scarring.",
        "The left opacity persists but the earlier haze has given way to clear lung.",
        "A dense left opacity has given way to a faint left opacity.",
    ],
)
def test_partial_clearing_leaves_the_finding(premise: str) -> None:
    assert entails(premise, "There is a left opacity.")


@pytest.mark.parametrize(
    "premise",
    [
        "The endotracheal tube has been pulled back 2 cm.",
        "The endotracheal tube was partially withdrawn.",
        "The endotracheal tube was partially withdrawn",
        "The endotracheal tube was withdrawn to the level of the clavicles.",
    ],
)
def test_a_device_that_was_moved_is_not_removed(premise: str) -> None:
    assert entails(premise, "There is an endotracheal tube.")


@pytest.mark.parametrize(
    ("premise", "finding"),
    [
        ("Opacity could be early consolidation.", "consolidation"),
        ("Mild edema suggested.", "edema"),
        ("This is felt to reflect atelectasis.", "atelectasis"),
        ("Small nodule questioned at the right apex.", "nodule"),
        ("Left lower lobe pneumonia suspected.", "pneumonia"),
        ("Basal atelectasis probable.", "atelectasis"),
        ("Streaky opacity, atelectasis versus scarring.", "atelectasis"),
        ("Opacity compatible with scarring or atelectasis.", "atelectasis"),
    ],
)
def test_doubt_without_a_verb_is_read(premise: str, finding: str) -> None:
    assert not entails(premise, f"There is {finding}.")
    assert any(fact.doubt > 1 for fact in parse_sentence(premise).facts)


@pytest.mark.parametrize(
    ("premise", "hypothesis", "expected"),
    [
        ("Minimal scarring or atelectasis at the left base.", "There is an opacity at the left base.", True),
        ("Minimal scarring or atelectasis at the left base.", "There is an opacity at the right base.", False),
        ("Effusion or atelectasis on the left.", "There is a left opacity.", False),
        ("Possible scarring or atelectasis.", "There is an opacity.", False),
    ],
)
def test_alternatives_state_what_they_have_in_common(premise: str, hypothesis: str, expected: bool) -> None:
    assert entails(premise, hypothesis) == expected


@pytest.mark.parametrize(
    ("sentence", "findings"),
    [
        ("Stable heart size, enlarged aorta.", {("heart", True), ("aortic_dilatation", True)}),
        ("Unchanged mediastinum and enlarged heart.", {("mediastinum", True), ("cardiomegaly", True)}),
        ("Normal heart size, the findings of edema are new.", {("cardiomegaly", False), ("edema", True)}),
        ("Enlarged left ventricle.", {("ventricular_hypertrophy", True)}),
        ("Mediastinal contours, tortuous aorta.", {("tortuous_aorta", True)}),
        ("Normal-sized heart.", {("cardiomegaly", False)}),
        ("Enlarged hilum, unchanged heart size.", {("hilar_enlargement", True), ("heart", True)}),
        (
            "Dilated aorta and heart size at the upper limits of normal.",
            {("aortic_dilatation", True), ("upper_normal_heart_size", True)},
        ),
        ("Calcified granulomas in the spleen.", {("abdominal_calcification", True)}),
    ],
)
def test_a_state_belongs_to_its_organ(sentence: str, findings: set[tuple[str, bool]]) -> None:
    assert {(fact.concept, fact.present) for fact in parse_sentence(sentence).facts} == findings


def test_an_unchanged_structure_keeps_its_change() -> None:
    changes = {
        fact.concept: "unchanged" in fact.change for fact in parse_sentence("Stable heart size, new mass.").facts
    }
    assert changes == {"heart": True, "mass": False}


def test_reasons_name_resolved_findings_and_both_sides() -> None:
    resolved = JUDGE.judge_one(EntailmentQuery(("Clearing of the left effusion.",), "There is a left effusion.")).why
    assert resolved == "The other report states resolved pleural effusion on the left, which contradicts pleural " + (
        "effusion on the left."
    )
    whole = JUDGE.judge_one(EntailmentQuery(("Right lung diffuse consolidation.",), "No consolidation.")).why
    assert (
        whole == "The other report states consolidation throughout the right side, which contradicts no consolidation."
    )


def test_a_normal_state_has_no_position_of_a_device() -> None:
    assert entails("Enlarged azygos vein, heart size is normal.", "The heart is normal in size.")


@pytest.mark.parametrize("hedge", ["most consistent with", "most compatible with", "highly consistent with"])
def test_a_strong_conclusion_is_stated(hedge: str) -> None:
    assert entails(f"Left basal opacity {hedge} pneumonia.", "There is left basal pneumonia.")


@pytest.mark.parametrize(
    ("narrative", "sentences"),
    [
        # Doubt is kept.
        ("Suspected hilar mass with obstructive atelectasis.", ["Suspected hilar mass with obstructive atelectasis."]),
        ("Probable edema with small effusion.", ["Probable edema with small effusion."]),
        # A doubted diagnosis is an interpretation, a doubted finding of the image is not.
        ("Possible left lower lobe pneumonia.", []),
        ("Pneumonia is possible in the left lower lobe.", []),
        ("Possible nodule.", ["Possible nodule."]),
        ("Left rib fracture, possible pneumothorax.", ["Left rib fracture.", "Possible left pneumothorax."]),
        ("Left opacity, possible nodule at the right apex.", ["Left opacity.", "Possible nodule at the right apex."]),
        ("Left opacity, possible nodule.", ["Left opacity."]),
        # A conclusion about the image is a finding, one about the disease is an interpretation.
        ("Left opacity consistent with atelectasis.", ["Left opacity consistent with atelectasis."]),
        ("Left opacity consistent with infection.", ["Left opacity."]),
        # Sides are repeated.
        ("Left effusion with adjacent atelectasis.", ["Left effusion.", "Adjacent left atelectasis."]),
        ("Bibasal opacities and effusions.", ["Bibasal opacities.", "Bilateral effusions."]),
        # Normal statements stay, whatever they are about; a state is not shared with another organ.
        ("Cervical spine intact.", ["Cervical spine intact."]),
        ("Lumbar spine normal.", ["Lumbar spine normal."]),
        ("Unremarkable examination of the chest.", ["Unremarkable examination of the chest."]),
        ("Normal heart size, tortuous aorta.", ["Normal heart size.", "Tortuous aorta."]),
        # Nothing is stated.
        ("Evaluation for effusion is limited.", []),
        ("Pneumothorax cannot be assessed.", []),
        ("The study was performed for pneumonia.", []),
        ("Is there a nodule?", []),
    ],
)
def test_removal_is_even_and_splits_keep_what_is_stated(narrative: str, sentences: list[str]) -> None:
    assert split_narrative(narrative) == sentences


@pytest.mark.parametrize(
    ("premise", "certain", "doubted"),
    [
        ("There is a nodule, probably in the left lower lobe.", "a nodule", "a left nodule"),
        ("Consolidation in the right lung, possibly within the upper lobe.", "right consolidation",
         "right upper lobe consolidation"),
        ("The right hemidiaphragm is elevated, possibly from hepatomegaly.", "right hemidiaphragm elevation", None),
        ("Possible slight increase in the left effusion.", "left effusion", "increased left effusion"),
        ("The right pneumothorax may be slightly larger.", "right pneumothorax", "a larger right pneumothorax"),
        ("Possibly enlarging right effusion.", "right effusion", "increased right effusion"),
        ("The left effusion may be loculated.", "left effusion", "loculated left effusion"),
        ("The left effusion is suspected to be loculated.", "left effusion", "loculated left effusion"),
    ],
)  # fmt: skip
def test_a_doubt_of_place_cause_or_change_is_no_doubt_of_the_finding(
    premise: str, certain: str, doubted: str | None
) -> None:
    assert entails(premise, f"There is {certain}.")
    assert doubted is None or not entails(premise, f"There is {doubted}.")


@pytest.mark.parametrize(
    ("premise", "finding"),
    [
        ("Left basal effusion suspected at the angle.", "effusion"),
        ("Possible enlarging effusion and nodule.", "nodule"),
        ("Left lower lobe consolidation may be present.", "consolidation"),
    ],
)
def test_a_doubt_of_the_finding_stays(premise: str, finding: str) -> None:
    assert not entails(premise, f"There is {finding}.")


@pytest.mark.parametrize(
    ("premise", "hypothesis", "expected"),
    [
        ("Nodular right basal opacity.", "There is a right nodule.", True),
        ("Improved consolidative left basal opacity.", "There is left consolidation.", True),
        ("Nodular and left basal opacity.", "There is a nodule.", False),
        ("Cardiac size and venous congestion are normal.", "There is vascular congestion.", False),
        ("Cardiac size and venous congestion are normal.", "The heart size is normal.", True),
        ("The congestion looks normal for a supine patient.", "There is vascular congestion.", True),
        ("Atelectasis and/or consolidation.", "There is atelectasis.", True),
        ("Atelectasis or consolidation.", "There is atelectasis.", False),
        ("Consolidation.", "There is atelectasis and/or consolidation.", True),
        ("Effusion.", "There is atelectasis and/or consolidation.", False),
        ("Degenerative changes of both shoulders.", "Degenerative changes of the spine.", False),
        ("The catheter projects over the thoracic cavity.", "There is a cavitary lesion.", False),
        ("Resolution of the edema and left basal opacity.", "There is an opacity.", False),
        ("Resolution of the edema and small left effusion.", "There is an effusion.", True),
        ("On a previous CT, the left base was consolidated.", "There is consolidation.", False),
        ("Left hemopneumothorax.", "There is a left pleural effusion.", True),
        ("Nodular infiltrate in the lingula.", "There is left consolidation.", True),
    ],
)
def test_divided_names_normal_verbs_and_lists(premise: str, hypothesis: str, *, expected: bool) -> None:
    assert entails(premise, hypothesis) is expected


@pytest.mark.parametrize(
    ("premise", "hypothesis", "back"),
    [
        ("There is a right basal infiltrate.", "Increased markings at the right base.", False),
        ("There is consolidation at the left base.", "There is an infiltrate at the left base.", True),
        ("Right apical scarring.", "Linear density at the right apex.", False),
        ("Subsegmental atelectasis of the left base.", "Linear opacity at the left base.", False),
        ("Right lower lobe granuloma.", "Calcified granuloma in the right lower lobe.", True),
        ("The heart remains enlarged.", "Cardiomegaly is unchanged.", True),
        ("Mild scoliosis.", "Minimal scoliosis.", True),
        ("Trace right effusion.", "Small right effusion.", False),
        ("There is no acute osseous abnormality.", "The bones are unremarkable.", True),
        ("Vascular congestion is absent.", "The pulmonary vasculature is normal.", True),
        ("There is density at the left base.", "There is increased density at the left base.", True),
    ],
)
def test_statements_that_radiologists_take_as_equal(premise: str, hypothesis: str, *, back: bool) -> None:
    assert entails(premise, hypothesis)
    assert entails(hypothesis, premise) is back


def test_curvatures_of_the_spine_to_different_sides_differ() -> None:
    assert entails("Mild dextroscoliosis.", "Mild scoliosis.")
    assert not entails("Mild dextroscoliosis.", "Mild levoscoliosis.")
    assert not entails("Levocurvature of the spine.", "Dextrocurvature of the spine.")


def test_intact_bones_may_be_degenerated() -> None:
    query = EntailmentQuery(("Degenerative changes of the thoracic spine.",), "The osseous structures are intact.")
    assert JUDGE.judge_one(query).relation == "neutral"
    assert JUDGE.judge_one(EntailmentQuery(("There is a rib fracture.",), query.hypothesis)).relation == "contradiction"


@pytest.mark.parametrize(
    ("premises", "hypothesis", "evidence"),
    [
        (("There is a left basal opacity.", "This is compatible with pneumonia."), "There is left pneumonia.", (0, 1)),
        (("Right upper lobe nodule.", "The heart is normal.", "Granuloma."), "There is a right granuloma.", (0, 2)),
        (("There are left and right opacities.", "There is a left opacity.", "Pneumonia."), "Left pneumonia.", ()),
        (("There is a left basal opacity.", "Calcified granuloma."), "There is a left granuloma.", ()),
        (("There is a left basal opacity.", "Possible pneumonia."), "There is left pneumonia.", ()),
        (("Possible left basal opacity.", "Pneumonia."), "There is left pneumonia.", ()),
    ],
)
def test_an_interpretation_is_where_its_only_finding_is(
    premises: tuple[str, ...], hypothesis: str, evidence: tuple[int, ...]
) -> None:
    assert JUDGE.judge_one(EntailmentQuery(premises, hypothesis)).evidence == evidence
