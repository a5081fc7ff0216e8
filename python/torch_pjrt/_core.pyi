"""The Rust extension. This stub is the contract between the Python facade and `crates/bridge`.

Conventions
-----------
* Device indices are non-negative and checked by the core: an index outside `range(device_count())` raises
  `RuntimeError` with torch.cuda's wording ("invalid device ordinal ...").
* Sizes are bytes, times are milliseconds, dtypes are `c10::ScalarType` numbers.
* "starts the client" marks the calls that may load the plugin and create the PJRT client. Everything else works
  before the client exists, in a machine without a plugin and in a forked child.
* A call that starts the client raises `RuntimeError` when `in_bad_fork()`, with CUDA's text:
  "Cannot re-initialize TPU in forked subprocess. To use TPU with multiprocessing, you must use the 'spawn' start method".
* When no plugin is usable, it raises `RuntimeError(initialize's no_plugin_message)`.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

# Program graphs ----------------------------------------------------------------------------------------------------

Meta: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...]]
"""(dtype, sizes, strides in elements) of a tensor as PyTorch sees it."""

Ref: TypeAlias = tuple[int, int]
"""(-1, i): input i of the graph. (n, k): output k of node n."""

Arg: TypeAlias = (
    tuple[
        str
    ]  # ("none",)  None;  ("o",)  a device, layout-free or generator argument: nothing a lowering looks at
    | tuple[str, Any]
    # ("t", Ref)                tensor
    # ("ts", [Ref | None])      tensor list, optional tensor list
    # ("n", bool|int|float|complex)   number; also dtype, layout and memory format, as their c10 numbers
    # ("ns", [number])          Scalar list
    # ("is", [int])  ("fs", [float])  ("bs", [bool])  ("s", str)
)

InputSpec: TypeAlias = tuple[str, int, Meta] | tuple[str, bytes, Meta]
"""("slot", k, meta): tensor k of the call, counting the tensors among the arguments depth first through lists
(device tensors and 0-dim CPU tensors alike; numbers are not counted).
("constant", data, meta): a constant that the decomposition made; `data` is its elements in row-major order,
the strides in `meta` are row-major. The same constant may serve every execution of the program."""

NodeSpec: TypeAlias = tuple[str, list[Arg], list[Meta | None]]
"""("aten::add.Tensor", arguments by schema position with defaults filled in, output metas from PyTorch's Meta kernels).
The overload "default" is written out: "aten::relu.default". View operators stay nodes. Mutation never appears."""

TracedGraph: TypeAlias = tuple[list[InputSpec], list[NodeSpec], list[Ref | None]]
"""(inputs, nodes, outputs). Outputs are flattened through lists; for an operator that mutates, first the new values of
the mutated tensors in schema order (flattened), then its fresh results."""

TraceResult: TypeAlias = tuple[TracedGraph | None, list[str], str | None]
"""(graph, missing, reason). `graph` is None when the operator cannot become a program: `missing` then names the
operators without a lowering ("aten::foo.default") and `reason` says what happened in words."""

# Start -------------------------------------------------------------------------------------------------------------

def initialize(
    shim_path: str,
    *,
    plugin_candidates: Sequence[tuple[str, str]],
    num_devices: int,
    no_plugin_message: str,
    register_hooks: bool,
    cache_dir: str | None,
) -> None:
    """Load and register the shim. Idempotent; starts no client and no thread, loads no plugin.

    plugin_candidates: (name, path), the order of preference; the first that loads is used. Names: "tpu", "cpu", "cuda",
    "custom". num_devices: what `device_count()` answers until the client exists (0: no plugin); for the CPU plugin also
    its `cpu_device_count`. register_hooks: become PyTorch's accelerator (PrivateUse1 hooks).
    cache_dir: root of the on-disk cache, None turns it off; created (mode 0700) at the first write.
    Raises ImportError when the shim does not load or its TPU_ABI_VERSION differs.
    """

def init() -> None:
    """Start the client now. Starts the client."""

def is_initialized() -> bool:
    """Whether this process has a running client."""

def in_bad_fork() -> bool:
    """Whether this process was forked from one that had a running client."""

def after_fork_in_child() -> None:
    """What a forked child calls first (registered with os.register_at_fork): a running client is the parent's."""

def shim_version() -> str:
    """The torch version the loaded shim was compiled against, e.g. "2.15.0"."""

def core_version() -> str:
    """Version of the Rust core, e.g. "0.1.0"."""

def lowering_version() -> str:
    """Digest that keys the on-disk cache: changes when a lowering may emit different code."""

def native_ops() -> list[str]:
    """Every operator with a native lowering, "aten::add.Tensor", "aten::relu.default", "prims::..."; not only those
    with an explicit kernel."""

# Devices -----------------------------------------------------------------------------------------------------------

def device_count() -> int: ...
def current_device() -> int: ...
def set_device(device: int) -> None: ...
def exchange_device(device: int) -> int:
    """Make `device` current and return the previous one; a negative index changes nothing."""

def synchronize(device: int) -> None:
    """Wait for everything submitted to `device`; raises the first error that is pending there. A no-op without a client."""

def plugin_info() -> dict[str, Any]:
    """Starts the client. {"name": str, "path": str, "api_version": "0.106", "platform_name": str,
    "platform_version": str, "attributes": dict[str, Any]}"""

def device_info(device: int) -> dict[str, Any]:
    """Starts the client. {"name": str (device kind), "description": str, "id": int, "local_hardware_id": int,
    "process_index": int, "total_memory": int (bytes; the host's memory for the CPU plugin), "float64": "native" | "emulated",
    "attributes": dict[str, Any]}"""

# Memory ------------------------------------------------------------------------------------------------------------

def memory_stats(device: int) -> dict[str, int]:
    """Without a client all zero. Keys, in bytes: "allocated_current", "allocated_peak", "allocated_total", "freed_total",
    "free_bytes", "total_bytes", "limit" (0: none), "host_pinned"; in storages: "blocks_current", "blocks_peak", "blocks_total",
    "blocks_freed"; in times: "ooms"."""

def reset_peak_memory_stats(device: int) -> None: ...
def reset_accumulated_memory_stats(device: int) -> None: ...
def set_memory_limit(device: int, limit: int | None) -> None:
    """Bytes that live tensors of `device` may take; None removes the limit. Works before the client starts."""

def empty_cache() -> None: ...
def record_memory_history(events: bool, stacks: bool, max_entries: int) -> None:
    """events: keep the last `max_entries` allocations and frees of each device. stacks: keep the Python stacks of
    allocations. Works before the client starts."""

def clear_memory_history() -> None: ...
def memory_snapshot(device: int) -> dict[str, Any]:
    """{"blocks": [(address, bytes, stream, stack)] of the live storages by address, "events": [("alloc" | "free" | "oom",
    address, bytes, stream, microseconds since 1970, stack, free bytes)] oldest first, "stacks": [[(file, line, function)]]
    innermost frame first}. A stack is its number in "stacks", or None; free bytes are None but for "oom"."""

# Random numbers ----------------------------------------------------------------------------------------------------

def default_generator_seed(device: int, seed: int) -> None:
    """Seed (0 <= seed < 2**64) the default generator and set its offset to 0. Starts nothing."""

def get_rng_state(device: int) -> bytes:
    """16 bytes: seed u64 | offset u64, little endian. Starts nothing."""

def set_rng_state(device: int, state: bytes) -> None:
    """ValueError unless 16 bytes. Starts nothing."""

# Streams -----------------------------------------------------------------------------------------------------------

def current_stream(device: int) -> int:
    """Stream id; 0 is the default stream."""

def exchange_stream(device: int, stream: int) -> int:
    """Make `stream` current on `device` for this thread, return the previous one. Does not change the current device."""

def new_stream(device: int, priority: int) -> int: ...
def stream_query(device: int, stream: int) -> bool: ...
def stream_synchronize(device: int, stream: int) -> None: ...

# Policy and statistics ---------------------------------------------------------------------------------------------

def stats() -> dict[str, Any]:
    """Since start or `reset_stats()`. Integers: "compiles", "cache_hits", "disk_hits", "fallbacks", "host_kernels",
    "host_transfers", "executions", "bytes_to_device", "bytes_to_host". Dictionaries: "compile_reasons" {reason: count},
    "fallback_ops", "host_kernel_ops", "decomposed_ops" {operator: count}."""

def reset_stats() -> None: ...
def set_fallback(mode: str) -> str:
    """ "error" | "warn" | "allow"; returns the previous mode. ValueError for another word."""

def get_fallback() -> str: ...
def eager_mode() -> str: ...
def set_eager_mode(mode: str) -> str:
    """ "debug" | "strict"; returns the previous mode. ValueError for another word."""

def freeze_compiles(frozen: bool) -> bool:
    """While frozen a compile raises RuntimeError naming the operator and its signature. Returns the previous state."""

def wait_compiles() -> None:
    """Wait until no compilation runs in the background."""

# Programs ----------------------------------------------------------------------------------------------------------

def set_tracer(
    trace: Callable[[str, list[Any]], TraceResult],
    meta_tensor: Callable[[Sequence[int], Sequence[int], int], Any],
    refuse: Callable[[str, list[Any]], None] | None = None,
) -> None:
    """Register the Python side of a plan miss (`torch_pjrt._decompose`).

    trace(op, args): `op` is "aten::logsumexp.default", `args` mirror its schema: a tensor (on the device or 0-dim on the
    host) is `meta_tensor(sizes, strides, dtype)`; a wrapped number is the Python number; dtype, layout and memory format
    are their c10 numbers; device and generator are None; lists are lists. Numbers become part of the program, so the
    core's key must hold their values. The core calls it with the GIL, with no Rust lock held.

    refuse(op, args): raises what the CPU raises of a call that a Meta kernel in Python has refused, if it does.
    """

def lower_to_text(graph: TracedGraph) -> dict[str, Any]:
    """Lower a graph to StableHLO without a client. {"text": str, "host_inputs": [(input index, dtype)] in parameter order
    after the device inputs, "uses_rng": bool}. NotImplementedError naming the operators without a lowering."""

def compile_for_topology(text: str, topology: str, libtpu_path: str) -> dict[str, Any]:
    """Compile StableHLO text ahead of time for a TPU topology such as "v5e:2x2"; no TPU and no client needed.
    {"peak_memory": int, "argument_bytes": int, "output_bytes": int, "temp_bytes": int, "code_bytes": int (bytes per device),
    "flops": float | None, "compile_seconds": float, "devices": int, "instructions": list}. Each instruction of the optimised
    module is (computation, name, opcode, shape with its layout as HLO text, operand names, dimensions, called computations).
    RuntimeError with the compiler's text; torch.OutOfMemoryError when the program does not fit in the device."""

def record_programs(recording: bool) -> list[tuple[str, str]]:
    """For tests: start or stop recording the programs that operators run, and return (operator, StableHLO text) of those
    recorded since the last call. While it records, every call builds its program anew."""

# On-disk cache -----------------------------------------------------------------------------------------------------

def cache_info() -> dict[str, Any]:
    """{"path": str | None, "enabled": bool, "entries": int, "bytes": int, "refused": str | None (why the folder is not used:
    owner or mode)}. Reads the folder only."""

def clear_cache() -> int:
    """Remove every entry, return how many. Programs in memory stay. PermissionError when the folder belongs to another."""
