"""A web server for one artefact: ``MODEL=model.collage gunicorn --config gunicorn_settings.py fastapi_server:app``.

``POST /run`` takes and returns JSON: ``{"inputs": {"x": [[1.0, 2.0]]}}``. ``GET /ready`` answers 200 as soon as a worker has
loaded its kernels, and 503 before.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Response

import collage

# Runs before gunicorn forks, if it preloads: every byte is compared with its digest, and no kernel is loaded.
executable = collage.load(os.environ["MODEL"], lazy=True, trusted=True)
TYPES = {port.name: object if port.dtype == "string" else port.dtype for port in executable.inputs}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the kernels in each worker, beside the event loop."""
    app.state.loading = asyncio.create_task(asyncio.to_thread(executable.warm_up))
    yield
    await app.state.loading


app = FastAPI(lifespan=lifespan)


@app.get("/ready")
async def ready() -> Response:
    """Tell if this worker's kernels are loaded."""
    loading: asyncio.Task[None] = app.state.loading
    if not loading.done():
        return Response("loading", 503)
    error = loading.exception()
    return Response("ready") if error is None else Response(str(error), 500)


@app.post("/run")
async def run(body: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Run the model once. The event loop goes on meanwhile."""
    try:
        feeds = {name: np.asarray(value, TYPES.get(name)) for name, value in body["inputs"].items()}
        outputs = await executable.arun(feeds)
    except (KeyError, OverflowError, TypeError, ValueError, collage.CollageError) as error:
        raise HTTPException(422, f"{type(error).__name__}: {error}") from error
    return {"outputs": {name: value.tolist() for name, value in outputs.items()}}
