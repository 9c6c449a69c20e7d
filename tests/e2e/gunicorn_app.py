"""A web server of the plainest kind: loads and runs an artefact before gunicorn forks its workers."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import collage

executable = collage.load(os.environ["MODEL"])
EXAMPLE = {port.name: np.zeros(port.shape, port.dtype) for port in executable.inputs}
executable.run(EXAMPLE)


def app(environment: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Return the outputs as bytes; ``/who`` tells about the worker instead."""
    if environment["PATH_INFO"] == "/who":
        facts = {"pid": os.getpid(), "threads": threading.active_count(), "notes": list(executable.notes)}
        body = json.dumps(facts).encode()
    else:
        data = environment["wsgi.input"].read(int(environment["CONTENT_LENGTH"]))
        (port,) = executable.inputs
        outputs = executable.run({port.name: np.frombuffer(data, port.dtype).reshape(port.shape)})
        body = next(iter(outputs.values())).tobytes()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
