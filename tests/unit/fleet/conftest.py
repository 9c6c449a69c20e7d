from tests.postgres_fixture import database_url, postgres

__all__ = ["database_url", "postgres"]
