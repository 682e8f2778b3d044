"""A loopback server that speaks as much of the providers' protocols as the tests need.

Each request takes the next turn of a list: a text, a status to fail with, or a dropped connection.
"""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DROP = "drop"
TOOL = {"name": "look", "arguments": '{"at": "it"}'}


class Wire:
    """The server's turns, and the requests that it has seen."""

    def __init__(self, turns: list[Any]) -> None:
        self.turns = turns
        self.seen: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self.base_url = ""

    def next_turn(self, request: dict[str, Any]) -> Any:
        with self.lock:
            self.seen.append(request)
            return self.turns[min(len(self.seen), len(self.turns)) - 1]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wire: Wire

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        turn = self.wire.next_turn({"path": self.path, **body})
        if turn == DROP:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif isinstance(turn, int):
            error = {"type": "overloaded_error", "message": f"status {turn}"}
            self._json({"type": "error", "error": error}, turn)
        elif self.path.endswith("/chat/completions"):
            self._chat(body, turn)
        else:
            self._messages(body, turn)

    def _json(self, value: Any, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _events(self, events: list[tuple[str | None, Any]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for name, value in events:
            head = f"event: {name}\n" if name else ""
            data = value if isinstance(value, str) else json.dumps(value)
            self.wfile.write(f"{head}data: {data}\n\n".encode())
            self.wfile.flush()
        self.close_connection = True

    def _chat(self, body: dict[str, Any], turn: str) -> None:
        usage = {
            "prompt_tokens": 11,
            "completion_tokens": 3,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 4},
        }
        base = {"id": "c1", "created": 1, "model": body["model"]}
        calls = (
            [{"index": 0, "id": "call_1", "type": "function", "function": TOOL}]
            if body.get("tools")
            else []
        )
        if not body.get("stream"):
            message = {"role": "assistant", "content": turn, "tool_calls": calls or None}
            self._json(
                {
                    **base,
                    "object": "chat.completion",
                    "usage": usage,
                    "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                }
            )
            return
        chunk = {**base, "object": "chat.completion.chunk"}
        events: list[tuple[str | None, Any]] = [
            (None, {**chunk, "choices": [{"index": 0, "delta": {"content": piece}}]})
            for piece in turn.split("|")
        ]
        if calls:
            events.append(
                (None, {**chunk, "choices": [{"index": 0, "delta": {"tool_calls": calls}}]})
            )
        events += [
            (None, {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
            (None, {**chunk, "choices": [], "usage": usage}),
            (None, "[DONE]"),
        ]
        self._events(events)

    def _messages(self, body: dict[str, Any], turn: str) -> None:
        usage = {
            "input_tokens": 7,
            "output_tokens": 3,
            "cache_read_input_tokens": 4,
            "cache_creation_input_tokens": 0,
        }
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": usage,
        }
        if not body.get("stream"):
            self._json({**message, "content": [{"type": "text", "text": turn}]})
            return
        start = {**message, "content": [], "stop_reason": None}
        events: list[tuple[str | None, Any]] = [
            ("message_start", {"type": "message_start", "message": start}),
            (
                "content_block_start",
                {
                    "type": "content_block_start",
                    "index": 0,
                    "content_block": {"type": "text", "text": ""},
                },
            ),
        ]
        for piece in turn.split("|"):
            if piece == "ERROR":
                error = {"type": "overloaded_error", "message": "Overloaded"}
                events.append(("error", {"type": "error", "error": error}))
                self._events(events)
                return
            delta = {"type": "text_delta", "text": piece}
            events.append(
                ("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta})
            )
        events += [
            ("content_block_stop", {"type": "content_block_stop", "index": 0}),
            (
                "message_delta",
                {
                    "type": "message_delta",
                    "usage": {"output_tokens": 3},
                    "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                },
            ),
            ("message_stop", {"type": "message_stop"}),
        ]
        self._events(events)


@contextmanager
def serve(*turns: Any) -> Iterator[Wire]:
    """A server on a free loopback port, until the block ends."""
    wire = Wire(list(turns))
    handler = type("Handler", (_Handler,), {"wire": wire})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    wire.base_url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield wire
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
