"""The device farm: recipes on devices over hosts, every night, with verdicts."""
