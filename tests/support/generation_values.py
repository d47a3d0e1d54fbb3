"""The small programs of generation_export, as far as tests without torch have to know them."""

from __future__ import annotations

from etdeploy.program.generation import GenerationMethod, StaticCache

VOCABULARY, CAPACITY, CHUNK = 48, 32, 8
# The token whose logits are NaN.
UNDEFINED = VOCABULARY - 1

# Of one token, of a chunk, of one more, of several chunks and a rest, and of the whole context.
PROMPTS = (
    (3,),
    tuple(range(CHUNK)),
    tuple(range(CHUNK + 1)),
    tuple(5 * i % 31 for i in range(2 * CHUNK + 3)),
    tuple(7 * i % 41 for i in range(CAPACITY)),
)

_HALF = CAPACITY // 2
_DYNAMIC = (
    GenerationMethod(
        name="prefill", role="prefill", max_tokens=CHUNK, dynamic=True, capacity=CAPACITY
    ),
    GenerationMethod(name="decode", role="decode", max_tokens=1, dynamic=False, capacity=CAPACITY),
)
METHODS = {
    "dynamic": _DYNAMIC,
    "static": (
        GenerationMethod(
            name="prefill", role="prefill", max_tokens=CHUNK, dynamic=False, capacity=CAPACITY
        ),
        GenerationMethod(
            name="decode", role="decode", max_tokens=1, dynamic=False, capacity=CAPACITY
        ),
        GenerationMethod(
            name="decode_half", role="decode", max_tokens=1, dynamic=False, capacity=_HALF
        ),
    ),
    # As ExecuTorch's own runner calls it.
    "forward": (
        GenerationMethod(
            name="forward", role="prefill", max_tokens=CHUNK, dynamic=True, capacity=CAPACITY
        ),
    ),
    # The first gives the logits of the tokens that its last input names, the other those of each.
    "verifying": (
        GenerationMethod(
            name="prefill", role="prefill", max_tokens=CHUNK, dynamic=True, capacity=CAPACITY,
            verify_tokens=CHUNK,
        ),
        GenerationMethod(
            name="decode", role="decode", max_tokens=1, dynamic=False, capacity=CAPACITY
        ),
    ),
    "each": (
        GenerationMethod(
            name="forward", role="prefill", max_tokens=CHUNK, dynamic=True, capacity=CAPACITY,
            verify_tokens=CHUNK,
        ),
    ),
    # Drafts of "verifying", which are right so often.
    **dict.fromkeys(("partly", "never"), _DYNAMIC),
    "cached": (
        GenerationMethod(
            name="prefill", role="prefill", max_tokens=CHUNK, dynamic=True, capacity=CAPACITY
        ),
        GenerationMethod(
            name="decode", role="decode", max_tokens=1, dynamic=False, capacity=CAPACITY
        ),
    ),
}  # fmt: skip
# That of `cached`, with a mask for all positions and one for the last five.
CACHE = StaticCache(places=CAPACITY - 1, windows=(0, 5), masked=-1e6, layers=((1, 16),))
