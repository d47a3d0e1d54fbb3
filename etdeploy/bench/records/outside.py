"""What a run record has of the time outside of delegates."""

from __future__ import annotations

from etdeploy.core.values import Value


class OutsideOperator(Value):
    """An operator that no delegate runs.

    Attributes:
        name: `aten::mean.out`.
        calls: Of it in an inference.
        share: Of the inference's time, from 0 to 1.
        modules: Of the model that call it.
        places: In the model's code, as `file.py:12`.
        reasons: Why the backend did not take it, as clauses.
    """

    name: str
    calls: int
    share: float
    modules: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


class Outside(Value):
    """The time outside of delegates, from the trace of the profile pass.

    Attributes:
        share: Of the time of an inference, from 0 to 1: (`Method::execute` - `DELEGATE_CALL`) /
            `Method::execute`. What the runtime does between operators is in it.
        operators: Those that take most of it, at most ten.
    """

    share: float
    operators: tuple[OutsideOperator, ...] = ()
