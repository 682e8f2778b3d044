"""Asks providers that the gateway does not stand before, by the variables that name them."""

import litellm
from google import genai
from openai import AzureOpenAI


def by_litellm(model):
    asked = [{"role": "user", "content": "hi"}]
    litellm.completion(model=model, messages=asked, num_retries=0, timeout=20)


def by_azure():
    client = AzureOpenAI(api_version="2024-10-21", api_key="none", max_retries=0)
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])


def by_vertex():
    with genai.Client(vertexai=True, api_key="none") as client:
        client.models.generate_content(model="m", contents="hi")


WAYS = {
    "groq": lambda: by_litellm("groq/m"),
    "ollama": lambda: by_litellm("ollama/m"),
    "azure": by_azure,
    "vertex": by_vertex,
}

for name, way in WAYS.items():
    try:
        way()
        print(name, "was answered")
    except Exception as error:  # noqa: BLE001 - which one it is, is the client's affair
        print(name, "was not answered:", type(error).__name__)
