"""Phantoms: synthetic chest radiographs with ground-truth reports, boxes and labels."""

from maira.data.phantoms.dictate import read_label
from maira.data.phantoms.generate import PhantomStudy, make_study, write_phantoms

__all__ = ["PhantomStudy", "make_study", "read_label", "write_phantoms"]
