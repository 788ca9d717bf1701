"""The contract with TensorFlow: what `tf_calls` uses of it and TensorFlow promises nobody; failures name it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context

from streamlearn.errors import ExecutionFailed, UsageError
from streamlearn.models.tf_calls import (
    Place,
    TracedFunction,
    definitions_of,
    join_cluster,
    kind_of,
    operations_of,
    register,
)
from streamlearn.serving.graphs.tensors import tensor_of
from streamlearn.serving.lanes.slab import ALIGNMENT_BYTES, Slab


def test_the_context_has_what_is_called() -> None:
    known = context.context()
    known_names = ("add_function_def", "device_name", "ensure_initialized", "get_compiler_ir", "get_function_def")
    for name in (*known_names, "has_function"):
        assert hasattr(type(known), name), f"tensorflow's eager context has no {name} any more"
    for name in ("abort_collective_ops", "configure_collective_ops", "enable_collective_ops"):
        assert hasattr(type(known), name), f"tensorflow's processes form a group in another way than by {name}"
    known.ensure_initialized()
    assert known._context_handle is not None, "a context that has begun is known in another way"
    assert known._handle is not None, "the eager context has no handle any more"
    assert callable(pywrap_tfe.TFE_Py_Execute), "functions are run in another way than by TFE_Py_Execute"


def test_a_registered_function_runs_by_its_name_with_arguments_in_a_list() -> None:
    concrete = tf.function(lambda one, two: [one + two, one * two]).get_concrete_function(
        tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)
    )
    definitions = definitions_of(concrete)
    definitions[0].signature.name = "contract_of_two"
    register(definitions)
    register(definitions)
    place = Place("/CPU:0")
    found = place.run(b"contract_of_two", [tf.constant([1.0, 2.0]), tf.constant(3.0)], 2)
    assert [one.numpy().tolist() for one in found] == [[4.0, 5.0], [3.0, 6.0]]
    place.wait()
    with pytest.raises(ExecutionFailed, match=r"contract_of_two failed on .*CPU:0: .*float"):
        place.run(b"contract_of_two", [tf.constant([1]), tf.constant(3.0)], 2)
    with pytest.raises(ExecutionFailed, match="no_such_function"):
        place.run(b"no_such_function", [], 1)


def test_a_process_in_which_tensorflow_has_begun_joins_no_cluster() -> None:
    tf.zeros([1])
    with pytest.raises(UsageError, match="has begun already"):
        join_cluster(["127.0.0.1:1", "127.0.0.1:2"], 0)


def test_a_function_is_lowered_by_its_name_and_its_operations_are_counted() -> None:
    inner = tf.function(lambda one: tf.tanh(one))
    outer = tf.function(lambda one, two: inner(one) * two).get_concrete_function(
        tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)
    )
    definitions = definitions_of(outer)
    definitions[0].signature.name = "contract_of_lowered"
    register(definitions)
    inputs = [tf.zeros([3]), tf.zeros([])]
    text = Place("/CPU:0").lowered(b"contract_of_lowered", inputs, stage="hlo").decode()
    assert "(f32[3]{0}, f32[])->f32[3]{0}" in text
    assert isinstance(Place("/CPU:0").lowered(b"contract_of_lowered", inputs, stage="hlo_serialized"), bytes)
    assert {"Tanh", "Mul", "PartitionedCall"} <= set(operations_of(b"contract_of_lowered"))


def test_a_function_is_compiled_for_its_attribute() -> None:
    concrete = tf.function(lambda one: one + 1).get_concrete_function(tf.TensorSpec([None], tf.float32))
    definition = definitions_of(concrete)[0]
    definition.signature.name = "contract_of_compiled"
    definition.attr["_XlaMustCompile"].b = True
    formatted = tf.function(lambda one: tf.raw_ops.StringFormat(inputs=[one])).get_concrete_function(
        tf.TensorSpec([None], tf.float32)
    )
    strings = definitions_of(formatted)[0]
    strings.signature.name = "contract_of_strings"
    strings.attr["_XlaMustCompile"].b = True
    register([definition, strings])
    place = Place("/CPU:0")
    assert place.run(b"contract_of_compiled", [tf.constant([1.0])], 1)[0].numpy() == [2.0]
    # What XLA cannot compile fails: had it been run uncompiled, it would not.
    with pytest.raises(ExecutionFailed, match="StringFormat"):
        place.run(b"contract_of_strings", [tf.constant([1.0])], 1)


def test_a_device_is_found_by_its_short_name_whatever_a_thread_has_entered() -> None:
    names = []

    def look() -> None:
        with tf.device("/CPU:0"):
            names.append(Place("/CPU:0").name)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert names == [Place("/CPU:0").name]
    assert names[0].endswith("/device:CPU:0")


def test_a_tensor_tells_its_type_and_shape() -> None:
    assert kind_of(tf.zeros([2, 3])) == (tf.float32.as_datatype_enum, (2, 3))
    assert kind_of(tf.zeros([4], tf.int32)) == (tf.int32.as_datatype_enum, (4,))


def test_tensorflow_aligns_what_it_makes_itself() -> None:
    for size in (1, 3, 77, 5_000):
        assert tf.fill([size], 2.0)._numpy().ctypes.data % ALIGNMENT_BYTES == 0


def test_arrays_become_tensors_of_their_own_type_and_shape_that_outlive_them() -> None:
    place = Place("/CPU:0")
    arrays: list[Any] = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([7], np.int32), np.zeros((0, 4))]
    wanted = [array.tolist() for array in arrays]
    tensors = place.tensors(arrays)
    del arrays
    # Other arrays take the memory, if anything can.
    others = [np.full((2, 3), np.nan, np.float32) for _ in range(100)]
    assert [tensor.numpy().tolist() for tensor in tensors] == wanted
    assert [tensor.dtype for tensor in tensors] == [tf.float32, tf.int32, tf.float64]
    assert all(tensor.device == place.name for tensor in tensors)
    assert np.isnan(others).all()


def test_memory_handed_over_is_read_where_it_lies() -> None:
    (array,) = Slab(((3, 5), np.float32)).arrays
    tensor = tensor_of(array)
    array[...] = 7
    assert (tensor.numpy() == 7).all()


def test_a_traced_function_runs_with_its_variables_in_order() -> None:
    total, weight = tf.Variable([1.0, 2.0]), tf.Variable(3.0)

    def step(pair: tuple[Any, Any], scale: Any) -> tuple[Any, tuple[Any, ...]]:
        total.assign_add(pair[0] * scale * weight)
        return total.read_value(), (pair[1] + 1.0, total + weight)

    vector, scalar = tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)
    traced = TracedFunction(tf.function(step).get_concrete_function((vector, vector), scalar))
    place = Place("/CPU:0")
    for seen in (7.0, 13.0):
        found = traced.run(place, [tf.constant([1.0, 1.0]), tf.constant([5.0]), tf.constant(2.0)])
        assert [one.numpy().tolist() for one in found] == [[seen, seen + 1], [6.0], [seen + 3, seen + 4]]
    assert total.numpy().tolist() == [13.0, 14.0]


@pytest.mark.parametrize("is_small", [False, True])
def test_small_functions_give_the_same_in_order_and_those_that_branch_or_loop_run_all_the_same(is_small: bool) -> None:
    def plain(one: Any) -> Any:
        return tf.reduce_sum(tf.nn.relu(one) * 2.0) + tf.reduce_sum(one)

    def branching(one: Any) -> Any:
        doubled = tf.cond(one[0] > 0, lambda: one * 2.0, lambda: one)
        return tf.while_loop(lambda at, _: at < 3, lambda at, sums: (at + 1, sums + doubled), (0, one))[1]

    place, vector = Place("/CPU:0"), tf.TensorSpec([None], tf.float32)
    for function, wanted in ((plain, 5.0), (branching, [14.0, -7.0])):
        traced = TracedFunction(tf.function(function).get_concrete_function(vector))
        assert traced._branches == (function is branching)
        (found,) = traced.run(place, [tf.constant([2.0, -1.0])], is_small=is_small)
        assert found.numpy().tolist() == wanted
    with pytest.raises(ExecutionFailed):
        place.run(b"no_such_function", [], 1, in_order=is_small)
