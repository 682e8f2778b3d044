"""openai-agents: runs with a function tool and a handoff, plain and streamed, six at once."""

import asyncio
import random

from agents import Agent, Runner, function_tool


@function_tool
async def weather(city: str) -> str:
    """The weather of a city."""
    await asyncio.sleep(random.random() / 100)
    return f"rain in {city}"


writer = Agent(name="writer", instructions="You write.", model="standin-1", tools=[weather])
asker = Agent(
    name="asker",
    instructions="You ask.",
    model="standin-1",
    tools=[weather],
    handoffs=[writer],
)


def task(n):
    return (
        f'task {n}\ncall weather {{"city": "Oslo {n}"}} and call weather {{"city": "Rome {n}"}}\n'
        f'call transfer_to_writer {{}}\ncall weather {{"city": "Bonn {n}"}}'
    )


async def plain(n):
    result = await Runner.run(asker, task(n))
    return f"{result.last_agent.name}: {result.final_output}"


async def streamed(n):
    result = Runner.run_streamed(asker, task(n))
    parts = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    return f"{result.last_agent.name}: {result.final_output} = {''.join(parts)}"


async def main():
    for line in await asyncio.gather(*map(plain, range(6)), *map(streamed, range(6, 12))):
        print(line)


asyncio.run(main())
