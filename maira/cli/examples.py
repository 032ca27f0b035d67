"""Examples for the help of commands."""

from __future__ import annotations

from collections.abc import Mapping

_LINES = """\
stats: maira stats phantoms/manifest.jsonl
stats: maira stats mimic/manifest.jsonl --by split --out stats.json
show: maira show mimic/manifest.jsonl --out sheet.html --count 100
pack: maira pack mimic/manifest.jsonl --split train --out shards
sentences: maira sentences manifest.jsonl --judge offline --as phrases --out phrases.jsonl
sentences: maira sentences manifest.jsonl --judge openai:MODEL --out sentences.jsonl
train: maira prepare phantom --count 24 --seed 3 --out phantoms
train: maira train configs/phantom.yaml train=phantoms/manifest.jsonl "validation.sources=[]" passes=32 \
global_batch=8 out=runs/try
estimate: maira estimate configs/maira2_7b.yaml --gpus 16 --gpu a100-80g
ablate: maira ablate configs/phantom.yaml configs/ablations/phantom/no_prior.yaml train=phantoms/manifest.jsonl \
"validation.sources=[]" passes=32 global_batch=8 "out=runs/{name}" --test phantoms/manifest.jsonl --task grounded \
--judge offline --out ablations
generate: maira generate --checkpoint checkpoints/phantom --manifest phantoms/manifest.jsonl --out drafts.jsonl
generate: maira generate --checkpoint maira-2 --manifest manifest.jsonl --task findings --engine vllm --engine-arg \
tensor_parallel_size=2 --out drafts.jsonl
preferences: maira preferences drafts-0.jsonl drafts-1.jsonl --manifest manifest.jsonl --out preferences.jsonl
preferences: maira preferences drafts-0.jsonl drafts-1.jsonl --manifest manifest.jsonl --scores logical_f1=1 \
--margin 0.2 --out preferences.jsonl
ground: maira ground --checkpoint checkpoints/phantom --manifest phantoms/manifest.jsonl --out grounded.jsonl
ground: maira ground --checkpoint maira-2 --manifest manifest.jsonl --phrases phrases.csv --out grounded.jsonl
boxes: maira boxes --checkpoint checkpoints/phantom --manifest phantoms/manifest.jsonl --out boxes.jsonl
assemble: maira assemble --encoder rad-dino --language-model vicuna-7b-v1.5 --out fresh
push: maira push runs/phantom/checkpoint ORG/NAME --license mit --results phantoms=results --dry-run
push: maira push runs/phantom/checkpoint ORG/NAME --license mit --results phantoms=results
judge-data: maira judge-data reports.csv --task entailment --balanced --teacher injected --teacher offline --out data
judge-data: maira judge-data reports.csv --task green --teacher openai:MODEL --drafts drafts.jsonl --out data
judge-data: maira judge-data --task vert --ratings rate_train.csv --layout rate-eval --out data
judge-data: radfact judge-check data/heldout.json --judge vllm:runs/judge/checkpoint
judge-data: radfact meta agreement data/heldout.csv --better higher --metrics green --judge vllm:runs/judge/checkpoint
judge-train: maira judge-train configs/judges/entailment.yaml model=MODEL train=data/samples.jsonl out=runs/judge
doctor: maira doctor
doctor: maira doctor maira-2 rad-dino vicuna-7b-v1.5 --weights WEIGHTS
prepare: maira prepare dicom radiograph.dcm --out radiograph
prepare: maira prepare phantom --count 24 --seed 3 --out phantoms
prepare: maira prepare mimic-cxr-jpg --root MIMIC-CXR-JPG --metadata MIMIC-CXR --out mimic
prepare dicom: maira prepare dicom radiograph.dcm more/radiographs --out radiograph
prepare phantom: maira prepare phantom --count 24 --seed 3 --out phantoms
prepare mimic-cxr: maira prepare mimic-cxr --root MIMIC-CXR --metadata MIMIC-CXR-JPG --ms-cxr MS-CXR --out mimic \
--workers 8
prepare mimic-cxr-jpg: maira prepare mimic-cxr-jpg --root MIMIC-CXR-JPG --metadata MIMIC-CXR --ms-cxr MS-CXR --out \
mimic --workers 8
prepare ms-cxr: maira prepare ms-cxr --root MS-CXR --images MIMIC-CXR-JPG --out ms-cxr
prepare padchest: maira prepare padchest --root PADCHEST --reports english.csv --splits master_table.csv --out \
padchest
prepare padchest-gr: maira prepare padchest-gr --root PADCHEST_GR --padchest PADCHEST --reports english.csv --out \
padchest-gr
prepare iu-xray: maira prepare iu-xray --root IU_XRAY --out iu-xray
prepare chexpert-plus: maira prepare chexpert-plus --root CHEXPERT_PLUS --out chexpert-plus
prepare chexpert-plus: maira prepare chexpert-plus --root CHEXPERT_PLUS --images PNG --priors none --out chexpert-plus
prepare rexgradient: maira prepare rexgradient --root REXGRADIENT --out rexgradient
prepare interpret-cxr: maira prepare interpret-cxr --root RRG24 --images IMAGES --views indiana_projections.csv \
--out interpret-cxr
prepare coco: maira prepare coco --root dataset.json --images FOLDER --out coco
prepare table: maira prepare table --root export --out own --workers 8
prepare table: maira prepare table --root export --draw-splits train=0.8,validate=0.1,test=0.1 --out own
annotate: maira annotate export phrases.jsonl --out tasks
annotate: maira annotate import export.json --manifest phrases.jsonl --out grounded.jsonl
annotate export: maira annotate export phrases.jsonl --out tasks
annotate import: maira annotate import export.json --manifest phrases.jsonl --out grounded.jsonl
evaluate: maira evaluate inputs --checkpoint checkpoints/phantom --manifest phantoms/manifest.jsonl --task grounded \
--drop prior --judge offline --out inputs
evaluate: maira evaluate labels drafts.jsonl --manifest phantoms/manifest.jsonl
evaluate labels: maira evaluate labels drafts.jsonl --manifest phantoms/manifest.jsonl
evaluate baseline: maira evaluate baseline --manifest phantoms/manifest.jsonl --out baseline.jsonl
evaluate inputs: maira evaluate inputs --checkpoint checkpoints/phantom --manifest phantoms/manifest.jsonl --task \
grounded --subset prior --drop comparison --drop prior+comparison --judge offline --out inputs
review start: maira review drafts.jsonl --manifest phantoms/manifest.jsonl
review start: maira review drafts.jsonl --manifest phantoms/manifest.jsonl --results results --db review.sqlite
review start: maira review campaign.yaml
review export: maira review export review.sqlite --out corrected
review summary: maira review summary review.sqlite --out figures
"""
"""Lines of the form COMMAND: EXAMPLE."""


def _by_command() -> Mapping[str, list[str]]:
    examples: dict[str, list[str]] = {}
    for line in _LINES.splitlines():
        name, _, example = line.partition(": ")
        examples.setdefault(name, []).append(example)
    return examples


EXAMPLES = _by_command()
