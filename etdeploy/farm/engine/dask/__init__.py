"""The engine over several hosts: Dask's scheduler here, one Worker for each phone there."""
