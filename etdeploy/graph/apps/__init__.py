"""The steps of an app, and what of its plan is known before the program."""
