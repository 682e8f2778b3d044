"""openai: chats, streams, responses and embeddings, in tasks and in threads."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from openai import AsyncOpenAI, OpenAI

MODEL = "standin-1"


def said(text):
    return {"model": MODEL, "messages": [{"role": "user", "content": text}]}


async def chat(client, text):
    answer = await client.chat.completions.create(**said(text))
    return answer.choices[0].message.content


async def chat_stream(client, text):
    parts = []
    async for part in await client.chat.completions.create(**said(text), stream=True):
        parts += [choice.delta.content or "" for choice in part.choices]
    return "".join(parts)


async def respond(client, text):
    return (await client.responses.create(model=MODEL, input=text)).output_text


async def respond_stream(client, text):
    parts = []
    async with client.responses.stream(model=MODEL, input=text) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                parts.append(event.delta)
    return "".join(parts)


async def embed(client, text):
    answer = await client.embeddings.create(model=MODEL, input=[text, text + " again"])
    return [[round(number, 3) for number in row.embedding] for row in answer.data]


async def tasks():
    async with AsyncOpenAI() as client:
        jobs = [
            *(chat(client, f"chat {n}") for n in range(8)),
            *(chat_stream(client, f"stream {n}") for n in range(6)),
            *(respond(client, f"respond {n}") for n in range(4)),
            *(respond_stream(client, f"respond stream {n}") for n in range(3)),
            *(embed(client, f"embed {n}") for n in range(3)),
        ]
        for answer in await asyncio.gather(*jobs):
            print(answer)
        # Equal requests at once: which of them gets which answer is nobody's, so they are sorted.
        print(*sorted(await asyncio.gather(*(chat(client, "equal") for _ in range(4)))), sep="\n")
        # Equal requests one after the other: in their order.
        for _ in range(3):
            print(await chat(client, "equal"))


def one_thread(n):
    client = OpenAI()
    first = client.chat.completions.create(**said(f"thread {n}")).choices[0].message.content
    # What was answered is asked again: a swapped answer would be a miss.
    second = client.responses.create(model=MODEL, input=f"thread {n} heard {first}")
    return f"{first} | {second.output_text}"


asyncio.run(tasks())
with ThreadPoolExecutor(8) as pool:
    for line in pool.map(one_thread, range(8)):
        print(line)
