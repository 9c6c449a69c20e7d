from tests.postgres_fixture import database_url, postgres
from tests.short_measurements import shorten_measurements

__all__ = ["database_url", "postgres"]

shorten_measurements()
