"""Small files of every kind that is imported, made here, and what they tell."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

USAGE = {"input_tokens": 10, "output_tokens": 4, "cache_read_input_tokens": 5}


def lines(*values: Any) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def said(
    message_id: str | None, *blocks: Any, usage: Any = USAGE, model: str = "claude-x", **more: Any
) -> dict[str, Any]:
    """A row of an assistant's message."""
    message = {"role": "assistant", "model": model, "content": list(blocks), "usage": usage}
    if message_id is not None:
        message["id"] = message_id
    return {"type": "assistant", "sessionId": "s", "message": message, **more}


def asked(content: Any, **more: Any) -> dict[str, Any]:
    return {
        "type": "user",
        "sessionId": "s",
        "message": {"role": "user", "content": content},
        **more,
    }


def tool(call_id: str, name: str, **args: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": args}


def gave(call_id: str, content: Any, *, is_error: bool = False) -> dict[str, Any]:
    return {
        "type": "tool_result",
        "tool_use_id": call_id,
        "content": content,
        "is_error": is_error,
    }


CLAUDE = lines(
    asked("make a file"),
    said("msg_1", {"type": "text", "text": "I will."}, tool("t_9", "Bash", command="ls")),
    asked([gave("t_9", "a.txt")]),
    {"type": "system", "subtype": "compact_boundary", "sessionId": "s", "compactMetadata": {}},
    said("msg_2", {"type": "text", "text": "Done."}),
)
CLAUDE_STREAM = lines(
    {"type": "system", "subtype": "init", "session_id": "s"},
    {**said("msg_1", tool("t_1", "Agent", prompt="count")), "parent_tool_use_id": None},
    {**asked("count"), "parent_tool_use_id": "t_1"},
    {**said("msg_2", tool("t_2", "Bash", command="wc")), "parent_tool_use_id": "t_1"},
    {**asked([gave("t_2", "21")]), "parent_tool_use_id": "t_1"},
    asked([gave("t_1", "21")]),
    said("msg_3", tool("t_3", "Write", path="x")),
    {
        "type": "result",
        "session_id": "s",
        "result": "21 files",
        "is_error": False,
        "permission_denials": [{"tool_use_id": "t_3"}],
    },
)
CODEX = lines(
    {"type": "session_meta", "payload": {"id": "x", "model_provider": "openai"}},
    {"type": "turn_context", "payload": {"model": "gpt-x"}},
    {"type": "response_item", "payload": {"type": "message", "role": "user", "content": "hi"}},
    {
        "type": "response_item",
        "payload": {
            "type": "function_call",
            "name": "shell",
            "arguments": '{"cmd":"false"}',
            "call_id": "c1",
        },
    },
    {
        "type": "event_msg",
        "payload": {
            "type": "token_count",
            "info": {
                "last_token_usage": {
                    "input_tokens": 100,
                    "cached_input_tokens": 40,
                    "output_tokens": 7,
                },
                "total_token_usage": {
                    "input_tokens": 100,
                    "cached_input_tokens": 40,
                    "output_tokens": 7,
                },
            },
        },
    },
    {
        "type": "response_item",
        "payload": {
            "type": "function_call_output",
            "call_id": "c1",
            "output": '{"output":"no","metadata":{"exit_code":1}}',
        },
    },
    {"type": "compacted", "payload": {"message": "summary"}},
    {"type": "something_new", "payload": {}},
)
CODEX_EXEC = lines(
    {"type": "thread.started", "thread_id": "t"},
    {"type": "turn.started"},
    {
        "type": "item.started",
        "item": {"id": "item_1", "type": "command_execution", "command": "exit 42"},
    },
    {
        "type": "item.completed",
        "item": {
            "id": "item_1",
            "type": "command_execution",
            "command": "exit 42",
            "aggregated_output": "",
            "exit_code": 42,
            "status": "failed",
        },
    },
    {
        "type": "turn.completed",
        "usage": {"input_tokens": 50, "cached_input_tokens": 30, "output_tokens": 9},
    },
)
GEMINI = json.dumps(
    {
        "sessionId": "g",
        "projectHash": "h",
        "messages": [
            {"type": "user", "id": "1", "content": "read it"},
            {
                "type": "gemini",
                "id": "2",
                "content": "yes",
                "model": "gemini-x",
                "tokens": {"input": 100, "cached": 60, "output": 5, "thoughts": 3, "tool": 1},
                "toolCalls": [
                    {
                        "id": "r-1",
                        "name": "read_file",
                        "args": {"path": "a"},
                        "status": "success",
                        "result": [{"functionResponse": {"response": {"output": "text"}}}],
                    },
                    {"id": "r-2", "name": "shell", "args": {}, "status": "cancelled"},
                ],
            },
        ],
    },
    indent=2,
).encode()
GEMINI_STREAM = lines(
    {"type": "init", "session_id": "g", "model": "gemini-x"},
    {"type": "message", "role": "user", "content": "hi"},
    {"type": "tool_use", "tool_name": "ls", "tool_id": "l-1", "parameters": {"dir": "."}},
    {"type": "tool_result", "tool_id": "l-1", "status": "success", "output": "a"},
    {"type": "message", "role": "assistant", "content": "one file", "delta": True},
    {
        "type": "result",
        "status": "success",
        "stats": {"input_tokens": 90, "cached": 10, "output_tokens": 6},
    },
)
GEMINI_ANSWERS = lines(
    {
        "method": "generateContentStream",
        "response": [
            {"candidates": [{"content": {"parts": [{"text": "I will"}]}}]},
            {
                "candidates": [
                    {"content": {"parts": [{"functionCall": {"name": "ls", "args": {"d": 1}}}]}}
                ],
                "usageMetadata": {
                    "promptTokenCount": 30,
                    "cachedContentTokenCount": 10,
                    "candidatesTokenCount": 4,
                    "thoughtsTokenCount": 2,
                },
            },
        ],
    }
)
_INSPECT_SAMPLE: dict[str, Any] = {
    "id": "one",
    "epoch": 1,
    "input": "q",
    "target": "",
    "messages": [],
    "attachments": {"abc": "a long prompt"},
    "events": [
        {"event": "span_begin", "id": "A", "name": "solver", "type": "solver"},
        {
            "event": "model",
            "span_id": "A",
            "model": "openai/gpt-x",
            "input": [{"role": "user", "content": "attachment://abc"}],
            "output": {
                "model": "gpt-x",
                "choices": [
                    {
                        "message": {
                            "role": "assistant",
                            "content": "",
                            "tool_calls": [
                                {"id": "call_1", "function": "bash", "arguments": {"cmd": "ls"}},
                                {"id": "call_2", "function": "rm", "arguments": {}},
                            ],
                        }
                    }
                ],
                "usage": {
                    "input_tokens": 7,
                    "output_tokens": 3,
                    "total_tokens": 15,
                    "input_tokens_cache_read": 5,
                },
            },
        },
        {"event": "approval", "call": {"id": "call_1"}, "approver": "human", "decision": "approve"},
        {"event": "approval", "call": {"id": "call_2"}, "approver": "x", "decision": "reject"},
        {
            "event": "tool",
            "span_id": "A",
            "id": "call_1",
            "function": "bash",
            "arguments": {"cmd": "ls"},
            "result": "a",
            "events": [],
        },
        {"event": "compaction", "type": "trim", "tokens_before": 90, "tokens_after": 10},
        {"event": "span_end", "id": "A"},
        {"event": "of_the_future"},
    ],
}
INSPECT = json.dumps(
    {
        "version": 2,
        "status": "success",
        "eval": {"model": "openai/gpt-x"},
        "samples": [_INSPECT_SAMPLE, {**_INSPECT_SAMPLE, "id": 2, "events": []}],
    }
).encode()
INSPECT_EVENTS = json.dumps(_INSPECT_SAMPLE["events"]).encode()


def inspect_zip(*samples: Any, packed: bytes | None = None) -> bytes:
    """A log of Inspect's as a zip file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps({"version": 2, "eval": {"model": "m/x"}}))
        for number, sample in enumerate(samples or [_INSPECT_SAMPLE]):
            archive.writestr(f"samples/{number}_epoch_1.json", json.dumps(sample))
        if packed is not None:
            archive.writestr("samples/9_epoch_1.json", packed)
    return file.getvalue()


AGENTS_STATE = json.dumps(
    {
        "$schemaVersion": "1.16",
        "original_input": "go",
        "model_responses": [
            {
                "output": [
                    {
                        "type": "function_call",
                        "call_id": "c-1",
                        "name": "pay",
                        "arguments": '{"n":1}',
                    },
                    {"type": "function_call", "call_id": "c-2", "name": "pay", "arguments": "{}"},
                ],
                "usage": {
                    "input_tokens": 20,
                    "input_tokens_details": [{"cached_tokens": 8}],
                    "output_tokens": 2,
                },
            }
        ],
        "session_items": [
            {
                "type": "tool_call_output_item",
                "output": "paid",
                "raw_item": {
                    "type": "function_call_output",
                    "call_id": "c-1",
                    "output": "paid",
                },
            }
        ],
        "context": {"approvals": {"pay": {"approved": True, "rejected": ["c-2"]}}},
    }
).encode()
AGENTS_TRACES = lines(
    {"object": "trace", "id": "trace_1", "workflow_name": "w"},
    {
        "object": "trace.span",
        "id": "s3",
        "parent_id": "s1",
        "span_data": {"type": "function", "name": "ls", "input": '{"d":1}', "output": "a"},
        "error": None,
    },
    {
        "object": "trace.span",
        "id": "s2",
        "parent_id": "s1",
        "span_data": {
            "type": "generation",
            "model": "gpt-x",
            "input": [{"role": "user", "content": "hi"}],
            "usage": {"input_tokens": 11, "output_tokens": 3},
        },
    },
    {
        "object": "trace.span",
        "id": "s1",
        "parent_id": None,
        "span_data": {"type": "agent", "name": "a"},
    },
)


def attribute(key: str, value: Any) -> dict[str, Any]:
    kind = "intValue" if isinstance(value, int) else "stringValue"
    return {"key": key, "value": {kind: str(value)}}


def span(name: str, parent: str | None = None, **attributes: Any) -> dict[str, Any]:
    """A span of OTLP's JSON; `__` in a name of an attribute is a dot."""
    return {
        "traceId": "t",
        "spanId": name,
        **({"parentSpanId": parent} if parent else {}),
        "attributes": [attribute(k.replace("__", "."), v) for k, v in attributes.items()],
    }


OTEL = json.dumps(
    {
        "resourceSpans": [
            {
                "scopeSpans": [
                    {
                        "spans": [
                            span(
                                "inner",
                                "outer",
                                gen_ai__operation__name="chat",
                                gen_ai__system="openai",
                                gen_ai__request__model="gpt-x",
                                gen_ai__usage__prompt_tokens=30,
                                gen_ai__usage__completion_tokens=4,
                                gen_ai__prompt="hi",
                            ),
                            span(
                                "outer",
                                "agent",
                                gen_ai__operation__name="chat",
                                gen_ai__usage__input_tokens=30,
                            ),
                            span(
                                "tool",
                                "agent",
                                gen_ai__operation__name="execute_tool",
                                gen_ai__tool__name="ls",
                                gen_ai__tool__call__arguments='{"d":1}',
                                gen_ai__tool__call__result="a",
                            ),
                            span("agent", "web", gen_ai__operation__name="invoke_agent"),
                            span("web", http__method="GET"),
                        ]
                    }
                ]
            }
        ]
    }
).encode()
OTEL_LINES = lines(
    {
        "name": "chat",
        "context": {"trace_id": "t", "span_id": "1"},
        "parent_id": None,
        "attributes": {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "anthropic",
            "gen_ai.request.model": "claude-x",
            "gen_ai.usage.input_tokens": 30,
            "gen_ai.usage.cache_read.input_tokens": 12,
            "gen_ai.usage.output_tokens": 4,
        },
    }
)
OPENHANDS = json.dumps(
    [
        {"id": 0, "source": "user", "action": "message", "args": {"content": "do"}},
        {
            "id": 1,
            "source": "agent",
            "action": "run",
            "args": {"command": "ls", "thought": "hm"},
            "tool_call_metadata": {
                "function_name": "execute_bash",
                "tool_call_id": "x",
                "model_response": {
                    "id": "m-1",
                    "model": "claude-x",
                    "choices": [
                        {
                            "message": {
                                "tool_calls": [
                                    {"id": "x", "function": {"arguments": '{"command":"ls"}'}}
                                ]
                            }
                        }
                    ],
                    "usage": {
                        "prompt_tokens": 40,
                        "completion_tokens": 5,
                        "prompt_tokens_details": {"cached_tokens": 15},
                    },
                },
            },
        },
        {
            "id": 2,
            "cause": 1,
            "source": "agent",
            "observation": "run",
            "content": "a",
            "extras": {"metadata": {"exit_code": 3}},
            "success": False,
        },
    ]
).encode()
SWE_AGENT = json.dumps(
    {
        "environment": "main",
        "trajectory": [{"action": "ls", "observation": "a", "thought": "t", "response": "r"}],
        "history": [
            {"role": "system", "content": "you"},
            {"role": "user", "content": "fix"},
            {"role": "assistant", "content": "t", "action": "ls"},
        ],
        "info": {"model_stats": {"tokens_sent": 12, "tokens_received": 3}, "submission": "diff"},
    }
).encode()
SWE_AGENT_CALLS = json.dumps(
    {
        "history": [
            {"role": "user", "content": "fix"},
            {
                "role": "assistant",
                "content": "t",
                "tool_calls": [{"id": "c", "function": {"name": "open", "arguments": '{"p":"a"}'}}],
            },
            {"role": "tool", "content": "text", "tool_call_ids": ["c"]},
        ]
    }
).encode()
_REF = {"digest": "ab" * 32, "byteLength": 4}
JSONL = lines(
    *(
        {
            "eventId": f"{seq:064x}",
            "runId": "r",
            "seq": seq,
            "version": 1,
            "occurredAt": "2026-01-01T00:00:00.000000Z",
            "kind": kind,
            "payload": payload,
        }
        for seq, (kind, payload) in enumerate(
            [
                ("run.started", {"agentId": "a"}),
                ("step.started", {"stepId": "s", "depth": 0}),
                (
                    "tool.proposed",
                    {"stepId": "s", "toolCallId": "c", "name": "ls", "args": _REF},
                ),
                ("tool.result", {"toolCallId": "c", "ok": True, "result": _REF}),
                (
                    "model.usage",
                    {
                        "provider": "p",
                        "model": "m",
                        "inputTokens": 5,
                        "outputTokens": 1,
                        "credits": 0,
                        "billingStatus": "estimated",
                    },
                ),
                ("run.finished", {"status": "completed"}),
            ]
        )
    )
)

# Kind, file, and what it tells: model calls, tool calls, tokens in, cached and out.
FILES: dict[str, tuple[str, bytes, tuple[int, int, int, int, int]]] = {
    "claude": ("claude-code", CLAUDE, (2, 1, 20, 10, 8)),
    "claude stream": ("claude-code", CLAUDE_STREAM, (2, 3, 30, 15, 12)),
    "codex": ("codex", CODEX, (1, 1, 60, 40, 7)),
    "codex exec": ("codex", CODEX_EXEC, (0, 1, 20, 30, 9)),
    "gemini": ("gemini-cli", GEMINI, (1, 2, 41, 60, 8)),
    "gemini stream": ("gemini-cli", GEMINI_STREAM, (2, 1, 80, 10, 6)),
    "gemini answers": ("gemini-cli", GEMINI_ANSWERS, (0, 1, 20, 10, 6)),
    "inspect events": ("inspect", INSPECT_EVENTS, (1, 2, 7, 5, 3)),
    "inspect zip": ("inspect", inspect_zip(), (1, 2, 7, 5, 3)),
    "agents state": ("openai-agents", AGENTS_STATE, (1, 2, 12, 8, 2)),
    "agents traces": ("openai-agents", AGENTS_TRACES, (1, 1, 11, 0, 3)),
    "otel": ("otel", OTEL, (1, 1, 30, 0, 4)),
    "otel lines": ("otel", OTEL_LINES, (0, 0, 18, 12, 4)),
    "openhands": ("openhands", OPENHANDS, (1, 1, 25, 15, 5)),
    "swe-agent": ("swe-agent", SWE_AGENT, (1, 1, 12, 0, 3)),
    "swe-agent calls": ("swe-agent", SWE_AGENT_CALLS, (1, 1, 0, 0, 0)),
    "jsonl": ("jsonl", JSONL, (0, 1, 5, 0, 1)),
}
