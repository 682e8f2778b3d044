"""Time zones by their IANA names, for days that are the same whatever zone a machine is in."""

from __future__ import annotations

import difflib
from datetime import UTC, tzinfo

from bernstein.errors import UsageError


def zone_named(name: str) -> tzinfo:
    """The time zone of an IANA name.

    Raises:
        UsageError: There is none of this name, or no data of zones here.
    """
    if name == "UTC":
        return UTC  # where a system has no data of zones, there is this one
    import zoneinfo  # noqa: PLC0415 - it reads folders

    # What a machine calls its own zone is another one on the next.
    known = zoneinfo.available_timezones() - {"localtime", "Factory"}
    if name in known:
        return zoneinfo.ZoneInfo(name)
    if len(known) < 2:
        advice = "this system has no data of time zones: install tzdata, or take UTC"
    else:
        of_folded = {zone.casefold(): zone for zone in sorted(known)}
        near = difflib.get_close_matches(name.casefold(), of_folded, 1)
        advice = f"did you mean {of_folded[near[0]]}?" if near else "for example: Europe/Berlin"
    raise UsageError(f"there is no time zone {name!r}\n  {advice}")
