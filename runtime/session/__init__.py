"""Sessions of the core: passes over an opened bundle within a memory budget."""

from edgekit.runtime.session.session import MakeEngine, Session, SessionOptions, open_session, plan_session

__all__ = ["MakeEngine", "Session", "SessionOptions", "open_session", "plan_session"]
