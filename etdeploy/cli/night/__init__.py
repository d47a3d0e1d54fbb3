"""What `etdeploy farm run` shows while a night goes on, and at its end."""
