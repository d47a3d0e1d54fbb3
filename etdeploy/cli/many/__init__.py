"""What verbs do for several recipes or devices, and for two that are compared."""
