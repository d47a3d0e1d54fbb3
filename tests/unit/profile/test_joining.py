from __future__ import annotations

from etdeploy.profile.calls import joined
from tests.support.traces import make_node

_FAMILIES = {
    "Convolution": ("aten::convolution", "aten::linear"),
    "Fully Connected": ("aten::convolution", "aten::linear"),
    "Batch Matrix": ("aten::bmm",),
    "Multiply": ("aten::mul",),
    "Square": ("aten::mul",),
}
_GRAPH = {
    1: (make_node("aten::convolution"),),
    2: (make_node("aten::relu"),),
    3: (make_node("aten::linear"),),
    4: (make_node("aten::mul"),),
    5: (make_node("aten::mul"),),
}


def test_nodes_of_a_family_are_joined_in_their_order() -> None:
    names = ["Transpose #1", "Convolution IGEMM #1", "Square #1", "Fully Connected #1", "Multiply"]
    assert joined(names, [1, 2, 4, 3, 5], _GRAPH, _FAMILIES) == {1: 1, 2: 4, 3: 3, 4: 5}


def test_a_family_with_another_number_of_nodes_is_not_guessed() -> None:
    names = ["Convolution #1", "Multiply #1", "Multiply #2", "Multiply #3"]
    assert joined(names, [1, 4, 5], _GRAPH, _FAMILIES) == {0: 1}


def test_the_last_of_what_a_node_became_is_its_operator() -> None:
    product = (make_node("aten::view_copy"), make_node("aten::bmm"), make_node("aten::view_copy"))
    graph = {7: product[:2], 8: product[:2]}
    # The layout of the second product is changed before the first product is computed.
    assert joined(["Batch Matrix #1", "Batch Matrix #2"], [8, 7, 7, 8], graph, _FAMILIES) == {
        0: 7,
        1: 8,
    }
