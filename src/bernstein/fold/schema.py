"""JSON Schema of a trajectory's events, made of the types that read them."""

from __future__ import annotations

from typing import Any

import msgspec

from bernstein.events.payloads import KINDS, VERSION
from bernstein.fold.source import ENVELOPES

_ONLY_WITH_A_PRICE = [
    {
        "if": {"properties": {"billingStatus": {"enum": ["estimated", "unsupported"]}}},
        "then": {"properties": {"credits": {"const": 0}}},
    },
    {
        "if": {"properties": {"billingStatus": {"not": {"const": "priced"}}}},
        "then": {"properties": {"priceBookVersion": False}},
    },
]


def event_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of an envelope, with one payload for each of the eleven kinds."""
    schemas, parts = msgspec.json.schema_components(
        (*ENVELOPES, *KINDS.values()), ref_template="#/$defs/{name}"
    )
    parts["ModelUsage"]["allOf"] = _ONLY_WITH_A_PRICE
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"TrajectoryEvent, version {VERSION}",
        "oneOf": list(schemas[: len(ENVELOPES)]),
        "$defs": parts,
    }
