"""Number of sentences without a finding known to the offline judge, in IU-Xray and in other languages.

    python tests/benchmarks/unread_sentences.py FOLDER

FOLDER holds `NLMCXR_reports.tgz` and `indiana_projections.csv`. All findings sections are split by the offline rules.
The ten sentences in each other language are common ones, written for this script.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from maira.data.sources.iu_xray import read_iu_xray
from radfact.judges import EntailmentQuery, split_narrative
from radfact.judges.offline import OfflineJudge, count_unread

OTHER_LANGUAGES = {
    "German": (
        "Das Herz ist normal groß. Kein Pleuraerguss. Die Lunge ist beidseits frei belüftet. "
        "Unauffälliges Mediastinum. Kein Pneumothorax. Verschattung im rechten Unterlappen. Zentraler "
        "Venenkatheter in regelrechter Lage. Degenerative Veränderungen der Wirbelsäule. Zeichen der "
        "pulmonalvenösen Stauung. Alte Rippenfrakturen links. "
    ),
    "Spanish": (
        "Corazón de tamaño normal. Sin derrame pleural. Los pulmones están bien expandidos. Mediastino "
        "sin alteraciones. No hay neumotórax. Infiltrado en el lóbulo inferior derecho. Catéter venoso "
        "central en posición adecuada. Cambios degenerativos de la columna. Signos de congestión venosa "
        "pulmonar. Fracturas costales antiguas izquierdas. "
    ),
    "French": (
        "Le cœur est de taille normale. Pas d'épanchement pleural. Les poumons sont bien aérés. "
        "Médiastin sans particularité. Pas de pneumothorax. Opacité du lobe inférieur droit. Cathéter "
        "veineux central en bonne position. Remaniements dégénératifs du rachis. Signes de surcharge "
        "veineuse pulmonaire. Fractures costales anciennes à gauche. "
    ),
}


def main() -> None:
    """Print the shares, and the number of sections with mostly unread sentences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder with the reports and the table of views")
    root = parser.parse_args().root
    judge = OfflineJudge()
    sections = [split_narrative(study.findings) for study in read_iu_xray(root).studies if study.findings]
    counts = [(count_unread_sentences(judge, sentences), len(sentences)) for sentences in sections if sentences]
    unread, total = (sum(column) for column in zip(*counts, strict=True))
    sections_mostly_unread = sum(2 * count > length for count, length in counts)
    print(f"IU-Xray: {unread:,} of {total:,} sentences ({unread / total:.1%}) in {len(counts):,} findings sections,")
    print(f"  more than half of the sentences in {sections_mostly_unread} of the sections")
    for language, text in OTHER_LANGUAGES.items():
        sentences = [f"{sentence}." for sentence in text.split(". ") if sentence]
        print(f"{language}: {count_unread_sentences(judge, sentences)} of {len(sentences)} sentences")


def count_unread_sentences(judge: OfflineJudge, sentences: Sequence[str]) -> int:
    """Return the number of sentences without a finding known to the judge."""
    return count_unread(judge.judge_one(EntailmentQuery((), sentence)).why for sentence in sentences)


if __name__ == "__main__":
    main()
