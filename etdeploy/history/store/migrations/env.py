"""alembic runs this for a migration; the connection is the caller's, and so is its transaction."""

from __future__ import annotations

from alembic import context

from etdeploy.history.store.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
context.run_migrations()
