"""A night judged by earlier ones, the change behind a regression, and the commit that made it."""
