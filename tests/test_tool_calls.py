"""A real model calls tools through the endpoint, asked by OpenAI's own client."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.endpoint import Serving


@pytest.mark.slow
def test_the_starter_calls_tools_where_it_has_to(starter_file: Path) -> None:
    from openai import OpenAI  # noqa: PLC0415 - it takes seconds to import

    from benchmarks.tool_calls import CITIES, required  # noqa: PLC0415 - it needs that, too

    with Serving(pair=str(starter_file)) as one:
        client = OpenAI(base_url=f"http://127.0.0.1:{one.port}/v1", api_key="none", timeout=600)
        model = client.models.list().data[0].id
        cities = random.sample(CITIES, 3)
        print(cities)  # noqa: T201 - to repeat a failure
        assert required(client, model, cities) == (3, 3)
