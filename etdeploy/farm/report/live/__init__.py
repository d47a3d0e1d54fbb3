"""A night while it goes on: the table, the dashboard, the server of its pages."""
