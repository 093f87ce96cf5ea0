"""What the five documents name, as data: every name, parameter, default, limit and error."""

from __future__ import annotations

from tests.conformance.row import REQUIRED, Document, Kind, Row, function, says

__all__ = ["DOCUMENTS"]

LIMIT, ERROR, RESULT = Kind.LIMIT, Kind.ERROR, Kind.RESULT

GRAPH = "tests/graph/test_movement.py::"
REFUSED = f"{GRAPH}test_wrong_calls_are_refused"
MOVEMENT = "tests/tensor/test_movement.py::"
COMBINED = "tests/tensor/test_combinations.py::"
GRADIENTS = "tests/tensor/test_gradients.py::"
ERRORS = "tests/tensor/test_errors.py::test_bad_input"
TENSOR = "tests/tensor/test_tensor.py::"
KERNELS = "tests/kernels/test_movements.py::"
KERNEL_ERRORS = "tests/kernels/test_errors.py::"
HERE = "tests/conformance/test_documents.py::"
MESH = "tests/sharding/test_mesh.py::"
MAPPINGS = "tests/sharding/test_mappings.py::"
VALUES = "tests/sharding/test_values.py::"
TYPES = "tests/sharding/test_types.py::"
SHAPES = "tests/sharding/test_shard_shapes.py::"

ROUND_TRIP = f"{MOVEMENT}test_moving_keeps_the_value_and_back_is_identity"
ALL_PAIRS = f"{MOVEMENT}test_all_pairs_of_layouts"
MOVES_BACK = f"{GRADIENTS}test_movements"
REDUCES = f"{COMBINED}test_all_reduce_is_the_reduction_of_what_the_group_holds"


GRAPH_OPS = Document(
    "Graph ops",
    "The four graph ops that move values between devices: `distributed_broadcast`, `transfer_to`, `allgather` and "
    "`shard_and_stack`, in `weft.graph.ops`.",
    (
        *function(
            "distributed_broadcast",
            "weft.graph.ops.distributed_broadcast",
            {"input": REQUIRED, "signal_buffers": REQUIRED},
            f"{GRAPH}test_broadcast_gives_each_device_the_value",
        ),
        says(
            RESULT,
            "`input`: a value, a shape, a dim, a number, an array, or what gives a value",
            "weft.graph.ops.distributed_broadcast",
            f"{GRAPH}test_what_counts_as_input",
            "tests/graph/test_graph.py::test_whatever_can_give_a_value_is_one",
        ),
        says(
            RESULT,
            "the root is the device of the input",
            "weft.graph.ops.distributed_broadcast",
            f"{GRAPH}test_the_root_of_a_broadcast_is_where_the_input_is",
        ),
        says(
            RESULT,
            "one output per signal buffer, of the input's shape and dtype",
            "weft.graph.ops.distributed_broadcast",
            f"{GRAPH}test_broadcast_gives_each_device_the_value",
        ),
        says(
            ERROR,
            "`ValueError`: the input's device has no signal buffer",
            "weft.graph.ops.distributed_broadcast",
            REFUSED,
        ),
        says(ERROR, "`ValueError`: a device is there twice", "weft.graph.ops.distributed_broadcast", REFUSED),
        says(
            ERROR,
            "`ValueError`: fewer than 2 signal buffers",
            "weft.graph.ops.distributed_broadcast",
            REFUSED,
            differs="MAX documents this check and does not make it; Weft makes it.",
        ),
        *function(
            "transfer_to",
            "weft.graph.ops.transfer_to",
            {"x": REQUIRED, "device": REQUIRED},
            f"{GRAPH}test_transfer",
        ),
        says(
            RESULT,
            "`device`: a device or a `DeviceRef`",
            "weft.graph.DeviceRef.of",
            f"{GRAPH}test_transfer",
            "tests/graph/test_graph.py::test_devices",
        ),
        *function(
            "allgather",
            "weft.graph.ops.allgather",
            {"inputs": REQUIRED, "signal_buffers": REQUIRED, "axis": 0},
            f"{GRAPH}test_allgather_concatenates",
        ),
        says(
            RESULT,
            "every device gets the concatenation of all inputs",
            "weft.graph.ops.allgather",
            f"{GRAPH}test_allgather_concatenates",
            f"{GRAPH}test_allgather_takes_uneven_sizes_along_the_axis",
            f"{GRAPH}test_allgather_of_one_input_is_that_input",
        ),
        says(
            ERROR,
            "`axis` out of bounds",
            "weft.graph.AxisError",
            REFUSED,
            differs="The document names no error here and MAX raises `IndexError`; Weft's `AxisError` is an `IndexError` and a `ValueError`.",
        ),
        *function(
            "shard_and_stack",
            "weft.graph.ops.shard_and_stack",
            {"inputs": REQUIRED, "devices": REQUIRED, "axis": 0},
            f"{GRAPH}test_shard_and_stack",
            inputs="MAX wants its inputs on the host; Weft takes them on any one device.",
        ),
        says(
            RESULT,
            "output *i* has the inputs' chunks *i*, stacked along a new dim 0, on `devices[i]`",
            "weft.graph.ops.shard_and_stack",
            f"{GRAPH}test_shard_and_stack",
            f"{GRAPH}test_shard_then_gather_is_identity",
        ),
        says(
            RESULT,
            "a negative `axis` counts from the end",
            "weft.graph.ops.shard_and_stack",
            f"{GRAPH}test_shard_and_stack",
        ),
        says(ERROR, "`ValueError`: no inputs", "weft.graph.ops.shard_and_stack", REFUSED),
        says(ERROR, "`ValueError`: no devices", "weft.graph.ops.shard_and_stack", REFUSED),
        says(ERROR, "`ValueError`: inputs of several shapes", "weft.graph.ops.shard_and_stack", REFUSED),
        says(
            ERROR,
            "`ValueError`: the size does not divide",
            "weft.graph.ops.shard_and_stack",
            REFUSED,
            f"{GRAPH}test_a_named_size_must_divide_when_it_is_known",
        ),
        says(
            ERROR,
            "`ValueError`: `axis` out of bounds",
            "weft.graph.AxisError",
            REFUSED,
            differs="MAX raises `IndexError`; Weft's `AxisError` is both.",
        ),
    ),
)


def communication() -> tuple[Row, ...]:
    return (
        *function(
            "shard",
            "weft.shard",
            {"x": REQUIRED, "mesh": REQUIRED, "dim_specs": REQUIRED, "replicated_axes": None},
            ROUND_TRIP,
            f"{TENSOR}test_conversion",
            differs="`**kwargs` is one by name, `async_op`: the documents name none, and a misspelt one should be told.",
            dim_specs="`P(...)`, a mapping or one axis name do as well as `DimSpec`s; dims left out at the end are whole.",
        ),
        says(RESULT, "`x` may be a pytree of tensors", "weft.shard", f"{TENSOR}test_conversion"),
        says(
            RESULT,
            "one `DimSpec` per dim",
            "weft.DimSpec",
            f"{MAPPINGS}test_dim_specs_are_another_way_to_write_names",
            f"{HERE}test_dim_specs_shard",
        ),
        says(
            RESULT,
            "from any layout to any other",
            "weft.shard",
            ALL_PAIRS,
            f"{MOVEMENT}test_between_meshes",
            f"{MOVEMENT}test_pending_reductions_resolve_to_the_value",
            differs="The documents gather or reduce first and cut then; Weft moves what is missing, and no more: "
            "in Nabla, changing the axis order or the mesh only changes the label, and a pending sum comes out too large by the number of replicas.",
        ),
        says(
            ERROR,
            "`replicated_axes` that split a dim",
            "weft.shard",
            ERRORS,
            differs="Not said in the documents; a `ValueError` here.",
        ),
        says(
            RESULT,
            "`reshard(*args, **kwargs)`: deprecated, the same as `shard`",
            "weft.reshard",
            f"{TENSOR}test_reshard_warns",
        ),
        *function(
            "all_reduce",
            "weft.all_reduce",
            {"sharded_tensor": REQUIRED, "reduce_op": "sum", "reduce_axes": None},
            REDUCES,
            f"{COMBINED}test_all_reduce_resolves_what_is_pending",
            differs="The documents' `**kwargs` are these two by name; an unknown one is an error.",
            reduce_op="`mean` (or `avg`) as well; one of the documents knows sums only.",
        ),
        says(
            RESULT,
            "`reduce_op`: `sum`, `max`, `min`, `prod`",
            "weft.ReduceOp",
            REDUCES,
            f"{GRADIENTS}test_combinations",
            f"{GRADIENTS}test_ties_share_the_gradient_equally",
            f"{GRADIENTS}test_products_are_right_with_zeros",
            differs="In Nabla the gradients of max, min and prod are that of sum; here each has its own.",
        ),
        says(
            RESULT,
            "every shard ends up with the same value",
            "weft.all_reduce",
            REDUCES,
            f"{COMBINED}test_the_same_call_gives_the_same_bits",
        ),
        *function(
            "all_gather",
            "weft.all_gather",
            {"sharded_tensor": REQUIRED, "axis": None, "physical_axis": None},
            MOVES_BACK,
            f"{HERE}test_all_gather_without_an_axis_gathers_every_dim",
            axis="In Nabla `None` raises; here it means every dim that is split, as documented.",
            physical_axis="Another name of `axis`; the documents pass it through `**kwargs`.",
        ),
        says(
            RESULT,
            "the whole on every device, also of a dim that two axes split",
            "weft.all_gather",
            f"{HERE}test_gathering_a_dim_split_by_two_axes_keeps_the_order",
            differs="In Nabla one of the two axes is gathered, in MAX the parts come back in another order.",
        ),
        *function(
            "all_to_all",
            "weft.all_to_all",
            {"sharded_tensor": REQUIRED, "split_axis": REQUIRED, "concat_axis": REQUIRED, "tiled": True},
            f"{COMBINED}test_tiled_all_to_all_is_the_exchange_of_parts",
            f"{COMBINED}test_untiled_all_to_all_stacks_one_slice_from_each",
            differs="On a mesh of several axes the exchange is within the group; Nabla ignores the group and sorts axis names. MAX executes none.",
        ),
        *function(
            "reduce_scatter",
            "weft.reduce_scatter",
            {"sharded_tensor": REQUIRED, "axis": REQUIRED, "reduce_op": "sum", "reduce_axes": None},
            f"{COMBINED}test_reduce_scatter_is_all_reduce_then_a_split",
            differs="Every kind of reduction, not sums only; the gradient has the shape of the input.",
        ),
        *function(
            "distributed_broadcast",
            "weft.distributed_broadcast",
            {"x": REQUIRED, "mesh": None},
            f"{COMBINED}test_broadcast_gives_every_device_the_whole",
            differs="The whole value, also of a tensor that is split (Nabla sends shard 0 and keeps the split), "
            "and the gradient counts replicas once.",
        ),
        *function(
            "ppermute",
            "weft.ppermute",
            {"sharded_tensor": REQUIRED, "permutation": REQUIRED},
            f"{COMBINED}test_ppermute_hands_shards_on",
        ),
        says(
            ERROR,
            "a permutation that names a device twice or none at all",
            "weft.ppermute",
            ERRORS,
            differs="Not said in the documents; Nabla ignores such pairs, here they are a `ValueError`.",
        ),
        *function(
            "to_device",
            "weft.to_device",
            {"x": REQUIRED, "device": None, "sharding": None},
            f"{HERE}test_to_device_with_neither_keeps_or_takes_the_default_device",
            f"{MOVEMENT}test_between_meshes",
            differs="The whole value arrives, whatever the layout was; in Nabla, moving a split tensor to one device returns shard 0.",
        ),
        says(LIMIT, "`sharding` is keyword-only", "weft.to_device", f"{HERE}test_sharding_is_keyword_only"),
        says(ERROR, "`device` and `sharding` exclude each other: `ValueError`", "weft.to_device", ERRORS),
        says(
            RESULT,
            "`sharding`: a `ShardingSpec`",
            "weft.ShardingSpec",
            f"{HERE}test_a_sharding_spec_is_a_mapping",
            differs="`ShardingSpec(mesh, dim_specs, replicated_axes)` makes a `NamedMapping`; any mapping will do.",
        ),
        says(
            RESULT,
            "differentiable: gradients go back to the input's layout",
            "weft.to_device",
            MOVES_BACK,
            f"{MOVEMENT}test_gradients_come_back_in_the_layout_of_what_they_belong_to",
        ),
        *function(
            "transfer_to",
            "weft.transfer_to",
            {"x": REQUIRED, "device": None, "sharding": None},
            f"{HERE}test_transfer_to_is_to_device",
        ),
        *function("cpu", "weft.cpu", {"x": REQUIRED}, f"{HERE}test_shorthands_are_to_device"),
        *function("gpu", "weft.gpu", {"x": REQUIRED}, f"{HERE}test_shorthands_are_to_device"),
        *function(
            "accelerator",
            "weft.accelerator",
            {"x": REQUIRED, "device_id": 0},
            f"{HERE}test_shorthands_are_to_device",
            ERRORS,
        ),
    )


COMMUNICATION = Document(
    "Communication ops",
    "Two documents name the same thirteen functions; where one says more, that counts. They are in `weft` and in `weft.ops`.",
    communication(),
)

BROADCAST = Document(
    "The broadcast kernel",
    "A Mojo struct with one static method. In `weft.kernels` it is a class with one static method, run by Triton, on torch tensors.",
    (
        *function(
            "DistributedBroadcast.execute",
            "weft.kernels.DistributedBroadcast.execute",
            {
                "outputs": REQUIRED,
                "input": REQUIRED,
                "signal_buffers": REQUIRED,
                "dev_ctxs_input": REQUIRED,
                "root": None,
                "target": None,
                "trace_name": None,
            },
            f"{KERNELS}test_broadcast_gives_every_device_the_input",
            dev_ctxs_input="A list of `DeviceContext(device, stream)`.",
            root="A compile-time parameter there, an argument here; by default the device that the input is on.",
            target="A compile-time parameter there, an argument here; names the device in a profile.",
            trace_name="`_trace_name` there.",
        ),
        says(
            RESULT,
            "`dtype` and `rank`",
            "weft.kernels.DistributedBroadcast",
            f"{KERNELS}test_any_dtype_moves",
            differs="Compile-time parameters there; here the tensors say them.",
        ),
        says(
            RESULT,
            "one call serves all devices",
            "weft.kernels.DistributedBroadcast",
            f"{KERNELS}test_broadcast_gives_every_device_the_input",
            "tests/kernels/test_signals.py::test_nobody_leaves_before_everybody_has_come",
        ),
        says(
            LIMIT,
            "at most 8 GPUs (`MAX_GPUS`)",
            "weft.kernels.MAX_GPUS",
            f"{KERNEL_ERRORS}test_a_wrong_broadcast_says_why",
            f"{GRAPH}test_at_most_eight_accelerators",
            differs="MAX documents the limit and its graph op does not check it; both of ours do.",
        ),
        says(
            LIMIT,
            "peer-to-peer access between GPUs",
            "weft.kernels.DistributedBroadcast",
            f"{HERE}test_gpus_that_cannot_reach_each_other_are_told",
            "tests/graph/test_passes.py::test_peer_access_is_checked",
        ),
        says(
            RESULT,
            "the traits `AnyType` and `ImplicitlyDestructible`",
            "weft.kernels.DistributedBroadcast",
            f"{KERNELS}test_broadcast_gives_every_device_the_input",
            differs="Mojo's own; every Python class has what they ask for.",
        ),
    ),
)

SHARDING = Document(
    "The sharding vocabulary",
    "The names of `max.experimental.sharding`, in `weft.sharding`. The document gives no signatures; Weft's are those of the "
    "[reference](reference/sharding.md).",
    (
        says(
            Kind.NAME,
            "`DeviceMesh`",
            "weft.sharding.DeviceMesh",
            f"{MESH}test_slots_and_coordinates_are_the_same_thing",
            f"{MESH}test_a_bad_mesh_says_what_is_wrong",
            differs="Sizes below 1 are an error; MAX lets negative ones pass.",
        ),
        says(Kind.NAME, "`Partial`", "weft.sharding.Partial", f"{VALUES}test_the_repr_says_the_value"),
        says(Kind.NAME, "`Placement`, abstract", "weft.sharding.Placement", f"{HERE}test_placements_are_one_family"),
        says(Kind.NAME, "`ReduceOp`", "weft.sharding.ReduceOp", f"{MAPPINGS}test_the_kinds_of_reduction"),
        says(Kind.NAME, "`Replicated`", "weft.sharding.Replicated", f"{VALUES}test_the_repr_says_the_value"),
        says(Kind.NAME, "`Sharded`, along `axis`", "weft.sharding.Sharded", f"{VALUES}test_the_repr_says_the_value"),
        says(
            Kind.NAME,
            "`DeviceMapping`, abstract",
            "weft.sharding.DeviceMapping",
            f"{MAPPINGS}test_names_in_both_vocabularies",
        ),
        says(
            Kind.NAME,
            "`NamedMapping`: one entry per tensor dim",
            "weft.sharding.NamedMapping",
            f"{MAPPINGS}test_names_to_placements_and_back_or_the_order_would_be_lost",
            differs="A name that the mesh does not have is an error; in MAX it vanishes. The order of several axes counts, and is kept when a tensor is gathered.",
        ),
        says(
            Kind.NAME,
            "`PlacementMapping`: one placement per mesh axis",
            "weft.sharding.PlacementMapping",
            f"{MAPPINGS}test_placements_to_names_and_back",
        ),
        says(Kind.NAME, "`SpecEntry`, a union", "weft.sharding.SpecEntry", f"{HERE}test_a_spec_entry_is_a_union"),
        says(
            Kind.NAME,
            "`DistributedBufferType`",
            "weft.sharding.DistributedBufferType",
            f"{TYPES}test_what_a_distributed_type_says",
        ),
        says(
            Kind.NAME,
            "`DistributedTensorType`",
            "weft.sharding.DistributedTensorType",
            f"{TYPES}test_local_types_are_the_shards_on_their_devices",
            differs="`local_types` of a size that does not divide are balanced; MAX raises there.",
        ),
        says(
            Kind.NAME,
            "`DistributedType`",
            "weft.sharding.DistributedType",
            f"{TYPES}test_what_a_distributed_type_says",
        ),
        says(Kind.NAME, "`TensorLayout`", "weft.sharding.TensorLayout", f"{TYPES}test_what_a_tensor_layout_says"),
        says(
            Kind.NAME,
            "`ConversionError`",
            "weft.sharding.ConversionError",
            f"{MAPPINGS}test_what_placements_cannot_say_is_told",
        ),
        says(
            Kind.NAME,
            "`global_shape_from_local`",
            "weft.sharding.global_shape_from_local",
            f"{SHAPES}test_local_to_global_to_local_is_exact",
        ),
        says(
            Kind.NAME,
            "`local_shard_shape_from_global`",
            "weft.sharding.local_shard_shape_from_global",
            f"{SHAPES}test_shard_shapes_are_the_shapes_of_the_boxes",
        ),
        says(
            Kind.NAME,
            "`shard_shape`: one representative shard",
            "weft.sharding.shard_shape",
            f"{SHAPES}test_the_representative_shard_is_rounded_down",
            differs="Rounds down, as in MAX; `local_shard_shape_from_global` says what each device really holds.",
        ),
        says(
            RESULT,
            "either vocabulary converts to the other",
            "weft.sharding.DeviceMapping.to_named_sharding",
            f"{MAPPINGS}test_one_layout_under_both_names",
            f"{MAPPINGS}test_placements_to_names_and_back",
        ),
        says(
            ERROR,
            "a conversion that would lose something raises `ConversionError`",
            "weft.sharding.DeviceMapping.to_placements",
            f"{MAPPINGS}test_what_placements_cannot_say_is_told",
            f"{MAPPINGS}test_another_mesh_keeps_what_it_can_say",
            differs="In MAX a conversion loses the kind of a reduction and the order of axes silently; here the kind is kept and the order is kept or raises.",
        ),
        says(
            RESULT,
            "a pending reduction is reduced by its own kind",
            "weft.Partial",
            f"{MOVEMENT}test_pending_reductions_resolve_to_the_value",
            differs="MAX sums a pending maximum or mean, and does nothing on the way from replicated or split to pending.",
        ),
    ),
)

DOCUMENTS = (SHARDING, COMMUNICATION, GRAPH_OPS, BROADCAST)
