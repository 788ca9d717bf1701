"""The canonical form of graphs that hold what ready-made models do not: functions within, branches, loops, captures."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from streamlearn.models.canonical import digest_of, make_canonical


def traced(factor: float, others: int = 0) -> Any:
    """A graph of a function within, a branch, a loop, an assertion and a small tensor from outside."""
    for size in range(others):
        tf.function(lambda one: one + 1).get_concrete_function(tf.TensorSpec([size]))
    outside = tf.constant([factor, 1.0])

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def within(inputs: Any) -> Any:
        return tf.reduce_sum(inputs, axis=1), inputs * 2

    def graph(inputs: Any) -> dict[str, Any]:
        sums, twice = within(inputs * outside)
        chosen = tf.cond(sums[0] > 0, lambda: within(twice)[1], lambda: -twice)
        _, found = tf.while_loop(lambda at, one: at < 3, lambda at, one: (at + 1, one + within(one)[1]), [0, chosen])
        with tf.control_dependencies([tf.debugging.assert_all_finite(found, "not finite")]):
            return {"found": tf.identity(found)}

    return tf.function(graph, input_signature=[tf.TensorSpec([None, 2], tf.float32, "inputs")], autograph=False)


def test_what_was_made_before_does_not_count_and_what_is_computed_does() -> None:
    first, again, other = traced(3.0), traced(3.0, others=5), traced(4.0)
    digests = [digest_of(one.get_concrete_function().graph.as_graph_def()) for one in (first, again, other)]
    assert digests[0] == digests[1] != digests[2]


def test_the_device_it_was_made_for_does_not_count() -> None:
    digests, texts = [], []
    for device in ("CPU:0", None):

        def graph(inputs: Any, device: str | None = device) -> Any:
            with tf.device(device):
                return inputs + 1

        function = tf.function(graph, input_signature=[tf.TensorSpec([None])], autograph=False)
        found = function.get_concrete_function().graph.as_graph_def()
        texts.append(str(found))
        digests.append(digest_of(found))
    assert texts[0] != texts[1]
    assert digests[0] == digests[1]


def test_a_saved_model_computes_the_same_in_its_canonical_form(tmp_path: Any) -> None:
    files = []
    for name, others in (("one", 0), ("two", 9)):
        module = tf.Module()
        module.graph = traced(3.0, others)
        concrete = module.graph.get_concrete_function()
        wanted = concrete(tf.constant([[1.0, -2.0], [0.5, 7.0]]))["found"].numpy().tolist()
        tf.saved_model.save(module, str(tmp_path / name), signatures={"graph": concrete})
        make_canonical(tmp_path / name, {concrete.name: "graph"})
        files.append((tmp_path / name / "saved_model.pb").read_bytes())
        loaded = tf.saved_model.load(str(tmp_path / name))
        assert loaded.graph(tf.constant([[1.0, -2.0], [0.5, 7.0]]))["found"].numpy().tolist() == wanted
        assert loaded.signatures["graph"](inputs=[[1.0, -2.0], [0.5, 7.0]])["found"].numpy().tolist() == wanted
        assert loaded.graph.concrete_functions[0].graph.as_graph_def().library.function
    assert files[0] == files[1]
    assert b"__inference" not in files[0]


def called_by_name(name: str, output: str, operation: str) -> Any:
    """A graph with a function whose one node is called as an operation of the function's own name."""
    graph = tf.compat.v1.GraphDef()
    function = graph.library.function.add()
    function.signature.name = name
    function.signature.input_arg.add(name="given", type=1)
    function.signature.output_arg.add(name=output, type=1)
    function.node_def.add(name=f"{name}_node", op=operation, input=["given"])
    function.ret[output] = f"{name}_node:y:0"
    caller = graph.library.function.add()
    caller.signature.name = f"{name}_caller"
    caller.signature.input_arg.add(name="given", type=1)
    caller.signature.output_arg.add(name="result", type=1)
    caller.node_def.add(name=f"{name}_call", op=name, input=["given"])
    caller.node_def.add(name=f"{name}_last", op="Identity", input=[f"{name}_call:{output}:0"])
    caller.ret["result"] = f"{name}_last:output:0"
    return graph


def test_functions_called_by_their_own_names_are_renamed_with_their_callers() -> None:
    first = digest_of(called_by_name("f_17", "y_3", "Neg"))
    assert digest_of(called_by_name("f_2041", "z", "Neg")) == first
    assert digest_of(called_by_name("f_17", "y_3", "Abs")) != first
