from tests.own_locks import own_locks
from tests.postgres_fixture import database_url, postgres
from tests.short_measurements import shorten_measurements

__all__ = ["database_url", "own_locks", "postgres"]

shorten_measurements()
