"""For plain doit: the same graph as `etdeploy run`, and tasks for working on this project.

doit list
doit run recipe=portable device=qemu
doit run reference          # write the generated pages of docs/ again
"""

from pathlib import Path

from etdeploy.graph.dodo import open_pipeline

DEPLOY_TASKS, DOIT_CONFIG = open_pipeline()


def task_deploy():
    """The pipeline from recipe to run record."""
    yield from DEPLOY_TASKS


def task_reference():
    """Write docs/recipes.md, records.md, farm-yaml.md and the tables of troubleshooting.md."""
    from etdeploy.farm.spec import written
    from etdeploy.graph.dodo import write_reference

    return {
        "actions": [write_reference, written.write_reference],
        "file_dep": [
            "etdeploy/recipe/model.py",
            *sorted(map(str, Path("etdeploy/backends").rglob("*.py"))),
            "etdeploy/recipe/reference.py",
            *sorted(map(str, Path("etdeploy/bench/records").glob("*.py"))),
            "etdeploy/bench/results_folder.py",
            "etdeploy/bench/reference.py",
            "etdeploy/devices/base.py",
            "etdeploy/farm/spec/written.py",
            "etdeploy/program/model.py",
        ],
        "targets": [
            *("docs/recipes.md", "docs/records.md", "docs/farm-yaml.md"),
            "docs/troubleshooting.md",
        ],
        # Failure tables are everywhere.
        "uptodate": [False],
    }


def task_lint():
    """Check style and types."""
    return {
        "actions": [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]],
        "verbosity": 2,
    }


def task_test():
    """Run the unit tests; `doit run integration` runs those with real parts."""
    return {"actions": [["pytest", "tests/unit", "-q"]], "verbosity": 2}


def task_integration():
    """Run the tests with real exports, compilers and devices."""
    return {"actions": [["pytest", "tests/integration"]], "verbosity": 2}
