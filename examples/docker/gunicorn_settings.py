"""Settings of gunicorn: workers that share one verified artefact."""

import os

bind = f"0.0.0.0:{os.environ.get('PORT', '8000')}"
workers = int(os.environ.get("WORKERS", "4"))
worker_class = "uvicorn_worker.UvicornWorker"
preload_app = True  # The artefact is verified once, before the fork.
