"""pydantic-ai: agents with a tool over three routes, plain and streamed, and a typed result."""

import asyncio
import random

from pydantic import BaseModel
from pydantic_ai import Agent


class City(BaseModel):
    name: str


ROUTES = ("openai-chat:standin-1", "openai-responses:standin-1", "anthropic:standin-1")
agents = [Agent(route, instructions="Be short.") for route in ROUTES]
typed = Agent(ROUTES[0], output_type=City)


for agent in agents:

    @agent.tool_plain
    async def weather(city: str) -> str:
        """The weather of a city."""
        await asyncio.sleep(random.random() / 100)
        return f"rain in {city}"


def task(n):
    return (
        f'task {n}\ncall weather {{"city": "Oslo {n}"}} and call weather {{"city": "Rome {n}"}}\n'
        f'call weather {{"city": "Bonn {n}"}}'
    )


async def plain(n):
    return (await agents[n % 3].run(task(n))).output


async def streamed(n):
    async with agents[n % 3].run_stream(f"stream {n}") as result:
        return "".join([part async for part in result.stream_text(delta=True)])


async def city(n):
    return (await typed.run(f'call final_result {{"name": "Oslo {n}"}}')).output.name


async def main():
    jobs = [*map(plain, range(9)), *map(streamed, range(9)), *map(city, range(3))]
    for line in await asyncio.gather(*jobs):
        print(line)


asyncio.run(main())
