"""`python -m etdeploy`."""

from etdeploy.cli.main import main

main()
