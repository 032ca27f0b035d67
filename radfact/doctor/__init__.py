"""What is installed and found on this machine, and which commands can run with it.

Nothing here needs a package beyond Python's own to be imported, so that `python -m radfact.doctor` speaks even where
the installation is broken, and nothing raises.
"""

from radfact.doctor.report import Examination, Item, Section, looked_at

__all__ = ["Examination", "Item", "Section", "looked_at"]
