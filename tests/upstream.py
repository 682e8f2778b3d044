"""A loopback provider for the gateway's tests: each request gets its own answer, piece by piece.

What was sent is kept border by border, so that a served stream is compared with that and not with
our own recording.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """What one request is answered with; a cut one breaks off behind its last piece."""

    pieces: list[bytes]
    status: int = 200
    kind: str = "application/json"
    is_cut: bool = False
    delay_s: float = 0.0
    headers: list[tuple[str, str]] = field(default_factory=list)


Answer = Callable[[str, dict[str, Any], int], Reply]


class Upstream:
    """The server's answers, the requests that it has seen, and what it sent."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.lock = threading.Lock()
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.base_url = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: Upstream

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = self._chunked() if self.headers.get("Transfer-Encoding") else self._whole()
        with self.upstream.lock:
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.upstream.seen.append((self.path, headers, body))
            number = len(self.upstream.seen)
        try:
            value = json.loads(body)
        except ValueError:
            value = {}
        self._reply(self.upstream.answer(self.path, value, number), value.get("model"))

    do_GET = do_HEAD = do_POST  # noqa: N815 - names of the standard library

    def _whole(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _chunked(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _reply(self, reply: Reply, model: Any) -> None:
        time.sleep(reply.delay_s)
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.kind)
        for name, value in reply.headers:
            self.send_header(name, value)
        if self.command == "HEAD":
            self.end_headers()
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        # As a provider does: it answers with the model that was asked for.
        own = json.dumps(model if isinstance(model, str) else "m").encode()
        for said in reply.pieces:
            piece = said.replace(b'"model": "m"', b'"model": %b' % own)
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.flush()
            time.sleep(0.002)
        if reply.is_cut:
            self.close_connection = True
            self.connection.close()
            return
        self.wfile.write(b"0\r\n\r\n")


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a gateway that is killed leaves in the middle."""


@contextmanager
def serving(answer: Answer) -> Iterator[Upstream]:
    """A server on a free loopback port, until the block ends."""
    upstream = Upstream(answer)
    handler = type("Handler", (_Handler,), {"upstream": upstream})
    server = _Server(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    upstream.base_url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield upstream
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def prompt_of(body: dict[str, Any]) -> str:
    """The last user message of a request of either kind."""
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else content[0]["text"]


def event(value: Any, name: str | None = None) -> bytes:
    """One server-sent event."""
    data = value if isinstance(value, str) else json.dumps(value)
    return (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()


def chat(text: str, *, stream: bool = False, usage: int = 3) -> list[bytes]:
    """An answer of OpenAI's chat completions; a stream has a piece for every three characters."""
    base = {"id": "chatcmpl-1", "created": 1, "model": "m"}
    counts = {"prompt_tokens": 7, "completion_tokens": usage, "total_tokens": 7 + usage}
    if not stream:
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        value = {**base, "object": "chat.completion", "usage": counts, "choices": [choice]}
        return [json.dumps(value).encode()]
    chunk = {**base, "object": "chat.completion.chunk"}
    deltas = [{"content": text[n : n + 3]} for n in range(0, len(text), 3)]
    events = [event({**chunk, "choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    events.append(event({**chunk, "choices": [last], "usage": counts}))
    return [*events, event("[DONE]")]


def messages(*blocks: dict[str, Any], stop: str = "end_turn", salt: int = 1) -> list[bytes]:
    """An answer of Anthropic's messages as a stream, texts and arguments cut every four.

    ``salt`` makes its ids other ones.
    """
    usage = {"input_tokens": 7, "output_tokens": 3}
    start = {
        "id": f"msg_{salt}",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    out = [event({"type": "message_start", "message": start}, "message_start")]
    for index, block in enumerate(blocks):
        kind, name = ("text_delta", "text")
        text = block.get("text", "")
        opened = {"type": "text", "text": ""}
        if block.get("tool"):
            kind, name, text = "input_json_delta", "partial_json", json.dumps(block["input"])
            call_id = f"toolu_{salt}_{index}"
            opened = {"type": "tool_use", "id": call_id, "name": block["tool"], "input": {}}
        begin = {"type": "content_block_start", "index": index, "content_block": opened}
        out.append(event(begin, "content_block_start"))
        for n in range(0, len(text), 4):
            delta = {"type": kind, name: text[n : n + 4]}
            value = {"type": "content_block_delta", "index": index, "delta": delta}
            out.append(event(value, "content_block_delta"))
        out.append(event({"type": "content_block_stop", "index": index}, "content_block_stop"))
    delta = {"stop_reason": stop, "stop_sequence": None}
    end = {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 3}}
    return [*out, event(end, "message_delta"), event({"type": "message_stop"}, "message_stop")]


def own_answer(path: str, body: dict[str, Any], number: int) -> Reply:
    """An answer that names its request and how many came before it: no two are the same."""
    text = (
        f"{prompt_of(body)} answered {number} {sha256(json.dumps(body).encode()).hexdigest()[:6]}"
    )
    delay_s = (number * 7919 % 13) / 1000
    if path.endswith("/messages"):
        return Reply(messages({"text": text}), kind="text/event-stream", delay_s=delay_s)
    is_streamed = bool(body.get("stream"))
    kind = "text/event-stream" if is_streamed else "application/json"
    return Reply(chat(text, stream=is_streamed), kind=kind, delay_s=delay_s)
