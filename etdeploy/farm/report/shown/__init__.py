"""A night as text, Markdown, JUnit XML and a page."""
