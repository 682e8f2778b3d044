"""langgraph: a fan-out of six by Send, joined by a model that reads all of it."""

import asyncio
import operator
from typing import Annotated, TypedDict

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

openai = ChatOpenAI(model="standin-1")
streamer = ChatOpenAI(model="standin-1", streaming=True)
anthropic = ChatAnthropic(model="standin-1", max_tokens=64)
MODELS = (openai, anthropic, streamer)


class State(TypedDict):
    plan: str
    notes: Annotated[list[str], operator.add]
    joined: str


def plan(state):
    return {"plan": openai.invoke(f"plan {state['plan']}").content}


def fan_out(state):
    return [Send("note", {"plan": state["plan"], "number": n}) for n in range(6)]


def note(state):
    n = state["number"]
    return {"notes": [MODELS[n % 3].invoke(f"note {n} of {state['plan']}").content]}


async def anote(state):
    n = state["number"]
    answer = await MODELS[n % 3].ainvoke(f"note {n} of {state['plan']}")
    return {"notes": [answer.content]}


def join(state):
    # In the graph's order: the prompt is the recorded one only if each note is the recorded one.
    return {"joined": anthropic.invoke("join " + "; ".join(state["notes"])).content}


def graph(noting):
    made = StateGraph(State)
    made.add_node("plan", plan)
    made.add_node("note", noting)
    made.add_node("join", join)
    made.add_edge(START, "plan")
    made.add_conditional_edges("plan", fan_out, ["note"])
    made.add_edge("note", "join")
    made.add_edge("join", END)
    return made.compile()


def show(state):
    print(state["plan"], *state["notes"], state["joined"], sep="\n")


async def three_at_once():
    compiled = graph(anote)
    jobs = [compiled.ainvoke({"plan": f"async {n}", "notes": []}) for n in range(3)]
    for state in await asyncio.gather(*jobs):
        show(state)


show(graph(note).invoke({"plan": "threads", "notes": []}))
asyncio.run(three_at_once())
