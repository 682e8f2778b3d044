"""litellm: three providers' routes, plain, streamed, with a tool, in tasks and threads."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import litellm

OPENAI, ANTHROPIC, GOOGLE = "openai/standin-1", "anthropic/claude-standin-1", "gemini/standin-1"
MODELS = (OPENAI, ANTHROPIC, GOOGLE)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def said(model, text):
    return {"model": model, "messages": [{"role": "user", "content": text}]}


async def ask(model, text):
    return (await litellm.acompletion(**said(model, text))).choices[0].message.content


async def stream(model, text):
    opened = await litellm.acompletion(**said(model, text), stream=True)
    return "".join([part.choices[0].delta.content or "" async for part in opened])


async def messages(text):
    answer = await litellm.anthropic.messages.acreate(**said(ANTHROPIC, text), max_tokens=64)
    return answer["content"][0]["text"]


async def respond(text):
    answer = await litellm.aresponses(model=OPENAI, input=text)
    return answer.output[0].content[0].text


async def embed(text):
    answer = await litellm.aembedding(model=OPENAI, input=[text], encoding_format="float")
    return [round(number, 3) for number in answer.data[0]["embedding"]]


async def tasks():
    jobs = [
        *(ask(model, f"ask {n}") for n in range(6) for model in MODELS),
        *(stream(model, f"stream {n}") for n in range(4) for model in MODELS),
        *(messages(f"messages {n}") for n in range(3)),
        *(respond(f"respond {n}") for n in range(3)),
        *(embed(f"embed {n}") for n in range(3)),
    ]
    for answer in await asyncio.gather(*jobs):
        print(answer)
    for model in MODELS:
        print(*sorted(await asyncio.gather(*(ask(model, "equal") for _ in range(4)))), sep="\n")


def one_thread(n):
    model = MODELS[n % 3]
    first = litellm.completion(**said(model, f'call weather {{"city": "Oslo {n}"}}'), tools=[TOOL])
    (call,) = first.choices[0].message.tool_calls
    parts = litellm.completion(**said(model, call.function.arguments), stream=True)
    return "".join(part.choices[0].delta.content or "" for part in parts)


asyncio.run(tasks())
with ThreadPoolExecutor(8) as pool:
    for line in pool.map(one_thread, range(8)):
        print(line)
