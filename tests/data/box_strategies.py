"""Boxes for property tests."""

from hypothesis import strategies as st

from radfact.records import Box

_SHARES = st.floats(0, 1)


def boxes(shares: st.SearchStrategy[float] = _SHARES, smallest: float = 0.0) -> st.SearchStrategy[Box]:
    """Boxes whose sides are at least this long."""
    ends = st.tuples(shares, shares).map(sorted).filter(lambda pair: pair[1] - pair[0] >= smallest)
    return st.builds(lambda x, y: Box(x_min=x[0], x_max=x[1], y_min=y[0], y_max=y[1]), ends, ends)
