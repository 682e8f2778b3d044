"""anthropic: messages, streams, counts and a tool, in tasks and in threads."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from anthropic import Anthropic, AsyncAnthropic

TOOL = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def said(text):
    return {
        "model": "standin-1",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": text}],
    }


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


async def ask(client, text):
    return text_of(await client.messages.create(**said(text)))


async def stream(client, text):
    async with client.messages.stream(**said(text)) as opened:
        return "".join([part async for part in opened.text_stream])


async def count(client, text):
    request = said(text)
    del request["max_tokens"]
    return (await client.messages.count_tokens(**request)).input_tokens


async def tasks():
    async with AsyncAnthropic() as client:
        jobs = [
            *(ask(client, f"ask {n}") for n in range(8)),
            *(stream(client, f"stream {n}") for n in range(6)),
            *(count(client, f"count {n}") for n in range(3)),
        ]
        for answer in await asyncio.gather(*jobs):
            print(answer)
        print(*sorted(await asyncio.gather(*(ask(client, "equal") for _ in range(4)))), sep="\n")
        for _ in range(3):
            print(await ask(client, "equal"))


def with_tool(n):
    """A conversation that goes on until the model asks for no tool."""
    client = Anthropic()
    asked = said(f'call weather {{"city": "Oslo {n}"}}\ncall weather {{"city": "Rome {n}"}}')
    lines = []
    while True:
        answer = client.messages.create(**asked, tools=[TOOL])
        lines.append(text_of(answer))
        uses = [block for block in answer.content if block.type == "tool_use"]
        if not uses:
            return " / ".join(lines)
        results = [
            {
                "type": "tool_result",
                "tool_use_id": use.id,
                "content": f"rain in {use.input['city']}",
            }
            for use in uses
        ]
        asked["messages"] += [
            {"role": "assistant", "content": [block.model_dump() for block in answer.content]},
            {"role": "user", "content": results},
        ]


asyncio.run(tasks())
with ThreadPoolExecutor(8) as pool:
    for line in pool.map(with_tool, range(8)):
        print(line)
