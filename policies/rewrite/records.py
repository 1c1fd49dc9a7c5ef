"""A graph as records that a rewrite may change, and back.

Columns are for reading a million ops fast; a rewrite wants to rename an input or drop an op. So a step
turns the graph into `OpEntry` values by name, changes those, and builds a new graph from them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain, count, pairwise
from typing import Any, Final

from sim import Graph, GraphBuilder
from sim.base.arrays import UNSET, Csr, IntArray
from sim.base.errors import GraphError
from sim.graph.frames import CONTROL_FLOW_KINDS, FrameStructure
from sim.graph.graph import Role, output_name, split_output

# ----------------------------------------------------------------------------------------------------------
# Kinds of op with effects of their own: a closed list, by the names that importers give.
#
# No step merges, folds or repeats them, however alike their inputs look: two random numbers are two, and a
# variable may have changed between two reads.
#
# The kinds of TensorFlow are what Grappler does not take for free of side effects (``IsFreeOfSideEffect`` in
# tensorflow/core/grappler/op_types.cc): an op that the registry of TensorFlow 2.21 marks as stateful
# (whatever touches a resource is), that takes a reference, updates its input in place, sends, or is a
# placeholder; and whatever has ``Queue`` in its name.

IN_PLACE: Final = frozenset({"inplace_add", "inplace_sub", "inplace_update"})
"""Kinds that write into what they read."""

_TENSORFLOW = """
    accumulator_apply_gradient accumulator_num_accumulated accumulator_set_global_step
    accumulator_take_gradient add_many_sparse_to_tensors_map add_sparse_to_tensors_map all_candidate_sampler
    all_to_all anonymous_hash_table anonymous_iterator anonymous_memory_cache anonymous_multi_device_iterator
    anonymous_mutable_dense_hash_table anonymous_mutable_hash_table anonymous_mutable_hash_table_of_tensors
    anonymous_random_seed_generator anonymous_seed_generator apply_ada_max apply_adadelta apply_adagrad
    apply_adagrad_da apply_adam apply_add_sign apply_centered_rms_prop apply_ftrl apply_gradient_descent
    apply_momentum apply_power_sign apply_proximal_adagrad apply_proximal_gradient_descent apply_rms_prop arg
    assert assign assign_add assign_sub assign_variable_xla_concat_nd barrier barrier_close
    barrier_incomplete_size barrier_insert_many barrier_ready_size barrier_take_many boosted_trees_center_bias
    boosted_trees_create_ensemble boosted_trees_create_quantile_stream_resource
    boosted_trees_deserialize_ensemble boosted_trees_ensemble_resource_handle_op
    boosted_trees_example_debug_outputs boosted_trees_flush_quantile_summaries
    boosted_trees_get_ensemble_states boosted_trees_predict
    boosted_trees_quantile_stream_resource_add_summaries boosted_trees_quantile_stream_resource_deserialize
    boosted_trees_quantile_stream_resource_flush boosted_trees_quantile_stream_resource_get_bucket_boundaries
    boosted_trees_quantile_stream_resource_handle_op boosted_trees_serialize_ensemble
    boosted_trees_training_predict boosted_trees_update_ensemble cache_dataset case check_numerics
    close_summary_writer collective_all_to_all collective_assign_group collective_bcast_recv
    collective_bcast_send collective_gather collective_initialize_communicator collective_permute
    collective_reduce collective_reduce_scatter conditional_accumulator configure_distributed_tpu
    configure_tpu_embedding consume_mutex_lock convert_to_coo_tensor count_up_to create_summary_db_writer
    create_summary_file_writer cross_replica_sum csv_dataset cudnn_rnn cudnn_rnn_backprop data_service_dataset
    dataset_to_single_element dataset_to_tf_record debug_gradient_ref_identity debug_identity deep_copy
    delete_iterator delete_memory_cache delete_multi_device_iterator delete_random_seed_generator
    delete_seed_generator delete_session_tensor deserialize_iterator destroy_resource_op
    destroy_temporary_variable device_index disable_copy_on_read distributed_save dummy_iteration_counter
    dummy_memory_cache dummy_seed_generator dynamic_enqueue_tpu_embedding_arbitrary_tensor_batch
    dynamic_enqueue_tpu_embedding_ragged_tensor_batch eager_py_func empty
    enqueue_tpu_embedding_arbitrary_tensor_batch enqueue_tpu_embedding_integer_batch
    enqueue_tpu_embedding_ragged_tensor_batch enqueue_tpu_embedding_sparse_batch
    enqueue_tpu_embedding_sparse_tensor_batch experimental_csv_dataset experimental_dataset_to_tf_record
    experimental_group_by_reducer_dataset experimental_iterator_get_device experimental_lmdb_dataset
    experimental_matching_files_dataset experimental_random_dataset experimental_set_stats_aggregator_dataset
    experimental_sql_dataset experimental_stats_aggregator_handle experimental_stats_aggregator_summary
    experimental_thread_pool_dataset experimental_thread_pool_handle fake_queue fifo_queue
    file_system_set_configuration fixed_length_record_dataset fixed_length_record_reader
    fixed_unigram_candidate_sampler flush_summary_writer generator_dataset
    get_minibatch_splits_with_physical_replica get_minibatches_in_csr_with_physical_replica get_session_handle
    get_session_tensor global_iter_id global_shuffle_dataset group_by_reducer_dataset guarantee_const
    hash_table identity_reader if import_event infeed_dequeue infeed_dequeue_tuple infeed_enqueue
    infeed_enqueue_tuple initialize_table initialize_table_from_dataset initialize_table_from_text_file
    inplace_add inplace_sub inplace_update is_boosted_trees_ensemble_initialized
    is_boosted_trees_quantile_stream_resource_initialized is_tpu_embedding_initialized is_variable_initialized
    iterator iterator_from_string_handle iterator_get_device iterator_get_model_proto iterator_get_next
    iterator_get_next_as_optional iterator_get_next_sync iterator_to_string_handle
    learned_unigram_candidate_sampler list_dataset list_snapshot_chunks_dataset lmdb_dataset lmdb_reader
    load_and_remap_matrix load_dataset load_tpu_embedding_adadelta_parameters
    load_tpu_embedding_adagrad_momentum_parameters load_tpu_embedding_adagrad_parameters
    load_tpu_embedding_adam_parameters load_tpu_embedding_centered_rms_prop_parameters
    load_tpu_embedding_frequency_estimator_parameters load_tpu_embedding_ftrl_parameters
    load_tpu_embedding_mdl_adagrad_light_parameters load_tpu_embedding_momentum_parameters
    load_tpu_embedding_proximal_adagrad_parameters load_tpu_embedding_proximal_yogi_parameters
    load_tpu_embedding_rms_prop_parameters load_tpu_embedding_stochastic_gradient_descent_parameters
    log_uniform_candidate_sampler lookup_table_export lookup_table_find lookup_table_import
    lookup_table_insert lookup_table_remove lookup_table_size make_iterator map_clear map_incomplete_size
    map_peek map_size map_stage map_unstage map_unstage_no_key matching_files_dataset merge_v2_checkpoints
    multi_device_iterator multi_device_iterator_from_string_handle multi_device_iterator_get_next_from_shard
    multi_device_iterator_init multi_device_iterator_to_string_handle multinomial mutable_dense_hash_table
    mutable_hash_table mutable_hash_table_of_tensors mutex mutex_lock nccl_all_reduce nccl_broadcast
    nccl_reduce non_deterministic_ints one_shot_iterator ordered_map_clear ordered_map_incomplete_size
    ordered_map_peek ordered_map_size ordered_map_stage ordered_map_unstage ordered_map_unstage_no_key
    outfeed_dequeue outfeed_dequeue_tuple outfeed_enqueue outfeed_enqueue_tuple padding_fifo_queue
    parameterized_truncated_normal placeholder placeholder_with_default print priority_queue py_func
    queue_close queue_dequeue queue_dequeue_many queue_dequeue_up_to queue_enqueue queue_enqueue_many
    queue_is_closed queue_size random_crop random_dataset random_gamma random_poisson random_shuffle
    random_shuffle_queue random_standard_normal random_uniform random_uniform_int range_dataset read_variable
    read_variable_xla_split_nd reader_num_records_produced reader_num_work_units_completed reader_read
    reader_read_up_to reader_reset reader_restore_state reader_serialize_state record_input recv
    recv_tpu_embedding_activations reduce_dataset ref_identity ref_select remote_call
    resource_accumulator_apply_gradient resource_accumulator_num_accumulated
    resource_accumulator_set_global_step resource_accumulator_take_gradient resource_apply_ada_max
    resource_apply_adadelta resource_apply_adagrad resource_apply_adagrad_da resource_apply_adam
    resource_apply_adam_with_amsgrad resource_apply_add_sign resource_apply_centered_rms_prop
    resource_apply_ftrl resource_apply_gradient_descent resource_apply_keras_momentum resource_apply_momentum
    resource_apply_power_sign resource_apply_proximal_adagrad resource_apply_proximal_gradient_descent
    resource_apply_rms_prop resource_conditional_accumulator resource_count_up_to resource_gather
    resource_gather_nd resource_scatter_add resource_scatter_div resource_scatter_max resource_scatter_min
    resource_scatter_mul resource_scatter_nd_add resource_scatter_nd_max resource_scatter_nd_min
    resource_scatter_nd_sub resource_scatter_nd_update resource_scatter_sub resource_scatter_update
    resource_sparse_apply_adadelta resource_sparse_apply_adagrad resource_sparse_apply_adagrad_da
    resource_sparse_apply_centered_rms_prop resource_sparse_apply_ftrl resource_sparse_apply_keras_momentum
    resource_sparse_apply_momentum resource_sparse_apply_proximal_adagrad
    resource_sparse_apply_proximal_gradient_descent resource_sparse_apply_rms_prop
    resource_strided_slice_assign restore restore_slice retrieve_tpu_embedding_adadelta_parameters
    retrieve_tpu_embedding_adagrad_momentum_parameters retrieve_tpu_embedding_adagrad_parameters
    retrieve_tpu_embedding_adam_parameters retrieve_tpu_embedding_centered_rms_prop_parameters
    retrieve_tpu_embedding_frequency_estimator_parameters retrieve_tpu_embedding_ftrl_parameters
    retrieve_tpu_embedding_mdl_adagrad_light_parameters retrieve_tpu_embedding_momentum_parameters
    retrieve_tpu_embedding_proximal_adagrad_parameters retrieve_tpu_embedding_proximal_yogi_parameters
    retrieve_tpu_embedding_rms_prop_parameters retrieve_tpu_embedding_stochastic_gradient_descent_parameters
    retval rng_read_and_skip rng_skip sample_distorted_bounding_box save save_dataset save_slices scatter_add
    scatter_div scatter_max scatter_min scatter_mul scatter_nd_add scatter_nd_max scatter_nd_min
    scatter_nd_sub scatter_nd_update scatter_sub scatter_update sdca_shrink_l1 send
    send_tpu_embedding_gradients serialize_iterator set_stats_aggregator_dataset shuffle_and_repeat_dataset
    shuffle_dataset shutdown_distributed_tpu sparse_accumulator_apply_gradient
    sparse_accumulator_take_gradient sparse_apply_adadelta sparse_apply_adagrad sparse_apply_adagrad_da
    sparse_apply_centered_rms_prop sparse_apply_ftrl sparse_apply_momentum sparse_apply_proximal_adagrad
    sparse_apply_proximal_gradient_descent sparse_apply_rms_prop sparse_conditional_accumulator
    sparse_tensor_slice_dataset sql_dataset stack stack_close stack_pop stack_push stage stage_clear
    stage_peek stage_size stateful_partitioned_call stateful_random_binomial stateful_standard_normal
    stateful_truncated_normal stateful_uniform stateful_uniform_full_int stateful_uniform_int
    stateless_random_get_alg stats_aggregator_handle stats_aggregator_set_summary_writer
    stats_aggregator_summary store_minibatch_statistics_in_fdo strided_slice_assign summary_writer sync_device
    take_many_sparse_from_tensors_map temporary_variable tensor_array tensor_array_close tensor_array_concat
    tensor_array_gather tensor_array_grad tensor_array_grad_with_shape tensor_array_pack tensor_array_read
    tensor_array_scatter tensor_array_size tensor_array_split tensor_array_unpack tensor_array_write
    tensor_dataset tensor_slice_dataset text_line_dataset text_line_reader tf_record_dataset tf_record_reader
    thread_pool_dataset thread_pool_handle thread_unsafe_unigram_candidate_sampler timestamp
    tpu_annotate_tensors_with_dynamic_shape tpu_copy_with_dynamic_shape tpu_dummy_input tpu_ordinal_selector
    truncated_normal uniform_candidate_sampler unstage var_handle_op var_is_initialized_op variable
    variable_shape while whole_file_reader worker_heartbeat write_audio_summary write_file write_graph_summary
    write_histogram_summary write_image_summary write_raw_proto_summary write_scalar_summary write_summary
    xla_sparse_core_adagrad xla_sparse_core_adagrad_momentum xla_sparse_core_adam xla_sparse_core_ftrl
    xla_sparse_core_sgd
"""

_ONNX = "random_normal random_normal_like random_uniform random_uniform_like bernoulli multinomial dropout"

_PYTORCH = """
    rand rand_like randn randn_like randint randint_like randperm normal uniform exponential native_dropout
"""

_COMMUNICATION = """
    all_reduce reduce all_gather broadcast all_to_all reduce_scatter barrier collective
"""

_OURS = "variable assign read queue random print"

STATEFUL: Final = CONTROL_FLOW_KINDS | {
    kind for kinds in (_TENSORFLOW, _ONNX, _PYTORCH, _COMMUNICATION, _OURS) for kind in kinds.split()
}
"""Kinds that no step removes, merges or repeats."""


# ----------------------------------------------------------------------------------------------------------

Edge = tuple[str, int]
"""A tensor that an op reads, or an op that it follows, and how many iterations earlier."""


@dataclass
class OpEntry:
    """One op; fields as in `GraphBuilder.op`, inputs as (tensor name, distance)."""

    name: str
    kind: str
    inputs: list[Edge]
    after: list[Edge]
    outputs: tuple[int, ...]
    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    duration_ns: int | None = None
    duration_by_kind: dict[str, int] = field(default_factory=dict)
    device: str | None = None
    dtype: str | None = None
    stage: int | None = None
    micro_batch: int | None = None
    phase: str | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def stateful(self) -> bool:
        """Whether running it has effects of its own (a variable, a random number, a send)."""
        return bool(self.attributes.get("stateful", False)) or self.kind in STATEFUL or self.in_place

    @property
    def in_place(self) -> bool:
        """Whether it writes into what it reads."""
        return self.kind in IN_PLACE or any(self.attributes.get(key) for key in ("inplace", "in_place"))

    def tensor(self, k: int = 0) -> str:
        """Return the name of output `k`."""
        return output_name(self.name, k)

    @property
    def tensors(self) -> list[str]:
        """The names of all outputs."""
        return [self.tensor(k) for k in range(len(self.outputs))]

    @property
    def reads(self) -> list[str]:
        """The names of all inputs."""
        return [tensor for tensor, _ in self.inputs]

    def like(
        self, name: str, kind: str, reads: Iterable[str], outputs: Sequence[int], **facts: Any
    ) -> OpEntry:
        """Return a new op beside this one: of its device, data type, stage, micro-batch and phase."""
        where = {key: getattr(self, key) for key in ("device", "dtype", "stage", "micro_batch", "phase")}
        made = {"after": [], "bytes_written": sum(outputs), **where, **facts}
        return OpEntry(name, kind, [(tensor, 0) for tensor in reads], outputs=tuple(outputs), **made)

    def part(self, by: Fraction) -> OpEntry:
        """Return an op of so many times the work, that takes so many times as long; bytes stay."""
        n, d = by.numerator, by.denominator
        return replace(
            self,
            flops=proportion(self.flops, n, d),
            duration_ns=None if self.duration_ns is None else proportion(self.duration_ns, n, d),
            duration_by_kind={kind: proportion(ns, n, d) for kind, ns in self.duration_by_kind.items()},
        )

    def scaled(self, by: Fraction) -> OpEntry:
        """Return an op of so many times the work, bytes and time."""
        made, n, d = self.part(by), by.numerator, by.denominator
        made.bytes_read = proportion(self.bytes_read, n, d)
        made.bytes_written = proportion(self.bytes_written, n, d)
        return made


def proportion(value: int, new: int, old: int) -> int:
    """Return value · new / old, half up; the value itself where `old` is 0.

    Examples
    --------
    >>> proportion(5, 1, 2), proportion(5, 1, 0)
    (3, 5)
    """
    return (2 * value * new + old) // (2 * old) if old else value


@dataclass(frozen=True)
class ExternalTensor:
    """A graph input or parameter."""

    nbytes: int
    role: int
    device: str | None


@dataclass
class Records:
    """A graph under change.

    Attributes
    ----------
    name : str
    ops : dict of str to Record
        In graph order.
    externals : dict of str to External
    device_facts : mapping
        As of the graph.
    """

    name: str
    ops: dict[str, OpEntry]
    externals: dict[str, ExternalTensor]
    device_facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def make(self, record: OpEntry) -> OpEntry:
        """Add an op under a name that others count on.

        Raises
        ------
        GraphError
            An op or a tensor has this name.
        """
        if record.name in self.ops or record.name in self.externals:
            message = f"two ops would be called {record.name!r}, the graph's and one that the rewrite makes"
            raise GraphError(f"{message}; give the graph's another name").about(record.name)
        self.ops[record.name] = record
        return record

    def make_all(self, ops: Iterable[OpEntry]) -> None:
        """Let these be all ops, in this order."""
        self.ops = {}
        for record in ops:
            self.make(record)

    def free(self, name: str) -> str:
        """Return a name for a new op: see `free_name`."""
        return free_name(name, self.ops, self.externals)

    def producer(self, tensor: str) -> OpEntry | None:
        """Return the op that makes a tensor; None for a graph input or parameter."""
        if tensor in self.ops:
            return self.ops[tensor]
        made = split_output(tensor)
        return None if made is None else self.ops.get(made[0])

    def makers(self, edges: Iterable[Edge]) -> list[OpEntry]:
        """Return the ops from which edges come, one for each that comes from an op."""
        made = (self.producer(name) for name, _ in edges)
        return [each for each in made if each is not None]

    def is_parameter(self, tensor: str) -> bool:
        """Whether a tensor is a parameter."""
        given = self.externals.get(tensor)
        return given is not None and given.role == Role.PARAMETER

    def parameters(self) -> list[str]:
        """Return the names of all parameters."""
        return [name for name in self.externals if self.is_parameter(name)]

    def readers(self) -> dict[str, list[OpEntry]]:
        """Return op name → the ops that read any of its outputs, once for each read."""
        return self._users([(record, record.inputs) for record in self.ops.values()])

    def followers(self) -> dict[str, list[OpEntry]]:
        """Return op name → the ops that follow it by a control edge."""
        return self._users([(record, record.after) for record in self.ops.values()])

    def _users(self, edges: Iterable[tuple[OpEntry, list[Edge]]]) -> dict[str, list[OpEntry]]:
        out: dict[str, list[OpEntry]] = {name: [] for name in self.ops}
        for record, row in edges:
            for producer in self.makers(row):
                out[producer.name].append(record)
        return out

    def unused(self) -> list[str]:
        """Return the ops that no other reads or follows."""
        readers, followers = self.readers(), self.followers()
        return [name for name in self.ops if not readers[name] and not followers[name]]

    def nbytes(self, tensor: str) -> int:
        """Return the size of a tensor."""
        producer = self.producer(tensor)
        if producer is None:
            return self.externals[tensor].nbytes
        _, k = (tensor, 0) if tensor == producer.name else split_output(tensor) or (tensor, 0)
        return producer.outputs[k]

    def redirect(self, moved: Mapping[str, str]) -> None:
        """Let whoever reads tensor `a` (or follows op `a`) read (follow) ``moved[a]`` instead."""

        def followed(name: str) -> str:
            producer = self.producer(moved.get(name, name))
            return name if producer is None else producer.name

        for record in self.ops.values():
            record.inputs = [(moved.get(tensor, tensor), d) for tensor, d in record.inputs]
            after = dict.fromkeys((followed(name), d) for name, d in record.after)
            record.after = [edge for edge in after if edge[0] != record.name]

    def remove(self, names: Iterable[str], followers: dict[str, list[OpEntry]] | None = None) -> None:
        """Drop ops; those that followed one by a control edge follow what it followed instead.

        `followers`, which is kept up to date, saves finding them anew in each of several calls.
        """
        followers = self.followers() if followers is None else followers
        for name in names:
            before = [edge for edge in self.ops.pop(name).after if edge[0] != name]
            for record in followers.pop(name, ()):
                edges = [edge for edge in record.after if edge[0] != name]
                record.after = list(dict.fromkeys([*edges, *before]))
                for first, _ in before:
                    followers[first].append(record)

    def remove_unused(self, names: Iterable[str]) -> None:
        """Drop those of some ops that no other reads or follows, until each left is needed."""
        candidates = set(names)
        users = {name: len(row) for name, row in self.readers().items()}
        for name, row in self.followers().items():
            users[name] += len(row)
        unused = [name for name in self.ops if name in candidates and not users[name]]
        while unused:
            gone = self.ops.pop(unused.pop())
            for producer in self.makers((*gone.inputs, *gone.after)):
                users[producer.name] -= 1
                if producer.name in candidates and not users[producer.name]:
                    unused.append(producer.name)


def free_name(name: str, *taken: Container[str]) -> str:
    """Return a name for an op that a rewrite makes: another one if an op or a tensor has this one.

    Examples
    --------
    >>> free_name("a/update", {"a/update", "a/update.2"})
    'a/update.3'
    """
    names = chain([name], (f"{name}.{k}" for k in count(2)))
    return next(each for each in names if not any(each in row for row in taken))


def read(graph: Graph) -> Records:
    """Return the records of `graph`.

    Examples
    --------
    >>> b = GraphBuilder("g")
    >>> _ = b.input("x", 4), b.op("a", inputs=["x"], outputs=8)
    >>> read(b.build()).ops["a"].inputs
    [('x', 0)]
    """
    tensors = [graph.tensor_name(t) for t in range(graph.n_tensors)]
    by_kind = graph.duration_by_kind.items()
    columns = zip(
        graph.op_names,
        [graph.kinds[code] for code in graph.kind_code.tolist()],
        _edges(graph.inputs, graph.input_distance, tensors),
        _edges(graph.after, graph.after_distance, graph.op_names),
        [tuple(graph.tensor_nbytes[row].tolist()) for row in graph.outputs.lists()],
        *(column.tolist() for column in (graph.flops, graph.bytes_read, graph.bytes_written)),
        _given(graph.duration_ns),
        [{kind: int(ns[op]) for kind, ns in by_kind if ns[op] != UNSET} for op in range(len(graph))],
        _words(graph.pins, graph.pin_code),
        _words(graph.dtypes, graph.dtype_code),
        _given(graph.stage),
        _given(graph.micro_batch),
        _words(graph.phases, graph.phase_code),
        [dict(graph.attributes.get(op, {})) for op in range(len(graph))],
        strict=True,
    )
    ops = {name: OpEntry(name, *facts) for name, *facts in columns}
    pins = _words(graph.pins, graph.tensor_pin)
    given = zip(graph.tensor_nbytes.tolist(), graph.tensor_role.tolist(), pins, strict=False)
    externals = {
        name: ExternalTensor(*facts) for name, facts in zip(graph.external_names, given, strict=False)
    }
    return Records(graph.name, ops, externals, graph.device_facts)


def _edges(rows: Csr, distance: IntArray, names: Sequence[str]) -> list[list[Edge]]:
    pairs = list(zip([names[i] for i in rows.indices.tolist()], distance.tolist(), strict=True))
    return [pairs[a:b] for a, b in pairwise(rows.indptr.tolist())]


def _given(column: IntArray) -> list[int | None]:
    return [None if value == UNSET else value for value in column.tolist()]


def _words(words: Sequence[str], codes: IntArray) -> list[str | None]:
    return [None if code == UNSET else words[code] for code in codes.tolist()]


def write(records: Records) -> Graph:
    """Build a graph from records.

    Raises
    ------
    GraphError
        The records are no graph any more (a step has a bug).
    """
    builder = GraphBuilder(records.name)
    for name, external in records.externals.items():
        add = builder.parameter if external.role == Role.PARAMETER else builder.input
        add(name, external.nbytes, device=external.device)
    for r in records.ops.values():
        builder.op(**vars(r))
    return replace(builder.build(), device_facts=records.device_facts)


def frames_given(graph: Graph, structure: FrameStructure) -> list[int]:
    """Return for each op the frame into which it gives its outputs: of an enter the one that it opens."""
    frames = list(structure.frame_of)
    for op in range(len(graph)):
        if graph.kind(op) == "exit":
            frames[op] = structure.parent[frames[op]]
    for enter, frame in structure.child_of.items():
        frames[enter] = frame
    return frames
