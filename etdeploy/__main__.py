"""`python -m etdeploy`."""

from etdeploy.cli.entry import main

main()
