"""Eight threads with an event loop of sixty-four tasks each; every fourth asks as a stream."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI


async def by_openai(client, text, is_streamed):
    asked = {"model": "standin-1", "messages": [{"role": "user", "content": text}]}
    if not is_streamed:
        return (await client.chat.completions.create(**asked)).choices[0].message.content
    stream = await client.chat.completions.create(**asked, stream=True)
    return "".join([c.delta.content or "" async for part in stream for c in part.choices])


async def by_anthropic(client, text):
    asked = {"model": "standin-1", "messages": [{"role": "user", "content": text}]}
    async with client.messages.stream(**asked, max_tokens=64) as stream:
        return "".join([part async for part in stream.text_stream])


async def loop_of(thread):
    async with AsyncOpenAI(timeout=120) as openai, AsyncAnthropic(timeout=120) as anthropic:

        async def one(task):
            text = f"thread {thread} task {task}"
            if task % 4 == 1:
                return await by_anthropic(anthropic, text)
            return await by_openai(openai, text, task % 4 == 2)

        return await asyncio.gather(*map(one, range(64)))


with ThreadPoolExecutor(8) as pool:
    for lines in pool.map(lambda thread: asyncio.run(loop_of(thread)), range(8)):
        print(*lines, sep="\n")
