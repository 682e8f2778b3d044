"""google-genai: plain, streamed, and with a function that it calls by itself."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from google import genai
from google.genai import types

MODEL = "standin-1"


def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


async def ask(client, text):
    return (await client.aio.models.generate_content(model=MODEL, contents=text)).text


async def stream(client, text):
    opened = await client.aio.models.generate_content_stream(model=MODEL, contents=text)
    return "".join([part.text or "" async for part in opened])


async def tasks():
    client = genai.Client()
    jobs = [
        *(ask(client, f"ask {n}") for n in range(8)),
        *(stream(client, f"stream {n}") for n in range(6)),
    ]
    for answer in await asyncio.gather(*jobs):
        print(answer)
    print(*sorted(await asyncio.gather(*(ask(client, "equal") for _ in range(4)))), sep="\n")
    for _ in range(3):
        print(await ask(client, "equal"))
    await client.aio.aclose()


def with_function(n):
    text = f'call weather {{"city": "Oslo {n}"}}\ncall weather {{"city": "Rome {n}"}}'
    with genai.Client() as client:
        config = types.GenerateContentConfig(tools=[weather])
        answer = client.models.generate_content(model=MODEL, contents=text, config=config)
        calls = sum(
            part.function_call is not None
            for content in answer.automatic_function_calling_history or []
            for part in content.parts
        )
        parts = client.models.generate_content_stream(model=MODEL, contents=f"thread {n}")
        return f"{answer.text} after {calls} calls | {''.join(p.text or '' for p in parts)}"


asyncio.run(tasks())
with ThreadPoolExecutor(8) as pool:
    for line in pool.map(with_function, range(8)):
        print(line)
