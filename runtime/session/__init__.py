"""Sessions of the core: passes over an opened bundle within a memory budget."""

from edgekit.runtime.session.sequence import SeenRows, Segment, Sequence
from edgekit.runtime.session.session import MakeEngine, Session, SessionOptions, open_session, plan_session

__all__ = [
    "MakeEngine",
    "SeenRows",
    "Segment",
    "Sequence",
    "Session",
    "SessionOptions",
    "open_session",
    "plan_session",
]
