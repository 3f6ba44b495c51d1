"""Sessions of the core: passes over an opened bundle within a memory budget."""

from edgekit.runtime.sampling.asks import SeenRows
from edgekit.runtime.session.saved import SavedSequence, read_saved
from edgekit.runtime.session.sequence import Segment, Sequence
from edgekit.runtime.session.session import MakeEngine, Session, SessionOptions, open_session, plan_session
from edgekit.runtime.session.together import Together

__all__ = [
    "MakeEngine",
    "SavedSequence",
    "SeenRows",
    "Segment",
    "Sequence",
    "Session",
    "SessionOptions",
    "Together",
    "open_session",
    "plan_session",
    "read_saved",
]
