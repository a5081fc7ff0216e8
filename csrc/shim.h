// The plain-C boundary between the C++ shim (one per torch minor) and the Rust core.
// Only POD structs cross it: no C++ type, no exception, no operator knowledge.
// The Rust mirror of these structs is crates/bridge/src/abi.rs; keep the two in step and bump TPU_ABI_VERSION.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define TPU_ABI_VERSION 1u

extern "C" {

enum TpuTensorFlags : uint8_t { TPU_WRAPPED_NUMBER = 1, TPU_CONJ = 2, TPU_NEG = 4 };

// A dense strided tensor. Device tensors carry `storage` (the core's handle: the DataPtr context);
// host tensors carry `host` (address of the first element). dtype is c10::ScalarType.
struct TpuTensor {
  void* storage;
  const void* host;
  const int64_t* sizes;
  const int64_t* strides;
  int64_t offset;  // storage offset in elements
  int32_t ndim;
  int8_t dtype;
  int8_t device_type;
  int8_t device_index;
  uint8_t flags;
};

enum TpuTag : int32_t {
  TPU_NONE,         // None or undefined tensor
  TPU_TENSOR,       // u.tensor
  TPU_INT,          // u.i  (also SymInt, dtype, layout, memory format)
  TPU_DOUBLE,       // u.d
  TPU_BOOL,         // u.i
  TPU_COMPLEX,      // u.c
  TPU_STRING,       // u.string, NUL-terminated
  TPU_INT_LIST,     // u.list of int64_t
  TPU_DOUBLE_LIST,  // u.list of double
  TPU_BOOL_LIST,    // u.list of uint8_t
  TPU_VALUE_LIST,   // u.list of TpuValue (tensor lists, optional tensor lists, scalar lists)
  TPU_DEVICE,       // u.i = type << 32 | (uint8_t)index
  TPU_GENERATOR,    // u.generator: at::GeneratorImpl*, only handed back through TpuShimApi::rng_advance
  TPU_OTHER,
};

struct TpuList {
  const void* data;
  size_t len;
};

struct TpuValue {
  int32_t tag;
  // 1 when the schema type of this argument is Scalar (or Scalar?, Scalar[]): its value is a run-time operand unless
  // the operator declares it an attribute.
  int32_t is_scalar;
  union {
    int64_t i;
    double d;
    double c[2];
    const char* string;
    void* generator;
    TpuList list;
    TpuTensor tensor;
  } u;
};

// One dispatch. `cxx` is the shim's own context, passed back to its callbacks.
struct TpuCall {
  uint32_t op;
  uint32_t nargs;
  const TpuValue* args;
  void* cxx;
  // Global modes that change programs: bits 0-1 float32 matmul precision (0 highest, 1 high, 2 medium), bit 2
  // deterministic algorithms, bits 8-15 default dtype (c10::ScalarType).
  uint32_t modes;
  int32_t device;  // device of the first device tensor or Device argument; current device when there is none
};

struct TpuMeta {
  const int64_t* sizes;
  const int64_t* strides;
  int32_t ndim;
  int8_t dtype;  // c10::ScalarType; -1: undefined tensor
};

// "Slot": position of a tensor among the call's defined tensors, depth first through lists.
// What a plan tells the shim: which outputs to allocate, which arguments to resize (out=), what to return.
struct TpuPlanInfo {
  void* plan;      // core's handle, borrowed: valid until the thread's next tpu plan call
  uint32_t nouts;  // fresh outputs, flattened
  const TpuMeta* outs;
  // Not 0: out= arguments that must take these sizes first. The shim resizes them and plans the call again; nothing
  // else of this plan is used.
  uint32_t nresized;
  const uint32_t* resized_slots;
  const TpuMeta* resized;
  // 1: run on the host (at::native::cpu_fallback) after the policy check has passed in the core; nothing else is set
  uint32_t host_fallback;
  // 1: the sizes of the fresh outputs depend on values (nonzero, masked_select, unique). outs gives only their number;
  // the shim calls execute_dynamic instead of execute.
  uint32_t dynamic;
};

// A storage that execute_dynamic made for one output; the shim owns the handle.
struct TpuDynamicOut {
  TpuMeta meta;  // borrowed until the thread's next call into the core
  void* storage;
  void* address;
  size_t nbytes;
};

// How fresh outputs reach the caller: a Tensor return takes the next output, a Tensor[] return takes all outputs that
// the other returns leave (operators with two fresh lists are refused), a bool, int, float or Scalar return takes one
// 0-d output, which the shim reads with read_scalar. Returns annotated as written, Tensor(a!), are the argument itself.

// Results of Meta runs on a plan miss.
struct TpuMetaResult {
  // Flattened outputs of the functional form (the operator itself when it mutates nothing). The functional form of an
  // operator that mutates and also returns fresh tensors gives the fresh ones first, then one per mutated argument, in
  // schema order. 0 and NULL when there is no functional form.
  uint32_t nfunctional;
  const TpuMeta* functional;
  uint32_t nmutated;  // mutated tensors (in-place, out=), in slot order
  const uint32_t* mutated_slots;
  const TpuMeta* mutated;  // their metadata after the call
  const char* error;       // set when Meta is not available (data dependent): the core decides (host fallback or error)
};

enum TpuStatus : int32_t {
  TPU_OK = 0,
  TPU_MISS = 1,  // plan(): run Meta, then call build()
  // errors: the exception to raise; message from last_error()
  TPU_RUNTIME_ERROR = 16,
  TPU_VALUE_ERROR,
  TPU_TYPE_ERROR,
  TPU_INDEX_ERROR,
  TPU_NOT_IMPLEMENTED,
  TPU_OUT_OF_MEMORY,
  TPU_PYTHON_ERROR,  // a Python exception is set on this thread: throw python_error
};

struct TpuMemoryStats {
  int64_t allocated_current, allocated_peak, allocated_total, freed_total;  // bytes
  int64_t blocks_current, blocks_peak, blocks_total, blocks_freed;          // storages
  int64_t ooms;
  int64_t free_bytes, total_bytes;
};

// Functions of the core, handed to the shim by torch_pjrt._core (capsule "torch_pjrt.core_api").
struct TpuCoreApi {
  uint32_t abi_version;
  uint32_t size;
  const char* (*last_error)();

  // operators ------------------------------------------------------------------------------------------------
  // Names with a native lowering that want an explicit kernel, "aten::add.Tensor" ... ; NULL-terminated.
  const char* const* (*native_ops)();
  // name "aten::add_", overload "Tensor"; functional_* name the functional form found by schema ("" when none).
  // mutated_args: bit i set when argument i is written. Returns the operator id.
  int32_t (*resolve)(const char* name, const char* overload, const char* functional_name,
                     const char* functional_overload, uint64_t mutated_args, uint32_t* op);
  int32_t (*plan)(const TpuCall*, TpuPlanInfo*);
  int32_t (*build)(const TpuCall*, const TpuMetaResult*, TpuPlanInfo*);
  // outs: fresh outputs, allocated by the shim.
  int32_t (*execute)(const TpuCall*, const TpuPlanInfo*, const TpuTensor* outs, uint32_t nouts);
  // For plans with `dynamic`: runs, waits for the sizes, and fills info->nouts outputs. May be NULL while unused.
  int32_t (*execute_dynamic)(const TpuCall*, const TpuPlanInfo*, TpuDynamicOut* outs);

  // storages -------------------------------------------------------------------------------------------------
  // Returns status; *storage is the handle (never NULL on TPU_OK), *address its reserved address (NULL for 0 bytes).
  int32_t (*storage_new)(size_t nbytes, int32_t device, void** storage, void** address);
  void (*storage_free)(void* storage);
  // Another handle of the live storage that starts at this address; NULL when there is none.
  void* (*storage_at)(const void* address);
  // A new storage of `nbytes` that keeps the common prefix of `old`'s bytes (untyped_storage().resize_).
  int32_t (*storage_resized)(void* old, size_t nbytes, void** storage, void** address);
  // Raw copy between two reserved addresses (not handles: Allocator::copy_data knows no more). NULL while unused.
  int32_t (*storage_copy)(void* dst_address, const void* src_address, size_t nbytes);

  // copies ---------------------------------------------------------------------------------------------------
  // Host -> device. `src` is a host tensor with dst's dtype and sizes, dense in dst's memory order (shim guarantees);
  // no conj/neg flags: both sides are what memory holds. non_blocking 1: nobody writes the host memory (a temporary of
  // the shim, or pinned memory on the user's word), so it may be read, or aliased, until release; 0: the core has read
  // it when the call returns.
  // `keepalive`/`release`: called exactly once when the host memory is no longer needed (also when the call fails;
  // maybe on another thread, no GIL).
  int32_t (*copy_from_host)(const TpuTensor* dst, const TpuTensor* src, int32_t non_blocking, void* keepalive,
                            void (*release)(void*));
  // Device -> host. `dst` is a host tensor with src's dtype and sizes, dense in src's memory order if src is dense and
  // non-overlapping, else contiguous. src's conj/neg flags are applied. non_blocking 1: dst is pinned and may be
  // written until release; 0: dst is complete when the call returns. release: as in copy_from_host.
  int32_t (*copy_to_host)(const TpuTensor* dst, const TpuTensor* src, int32_t non_blocking, void* keepalive,
                          void (*release)(void*));
  // Device -> device, any dtypes and strides, sizes equal after expansion by the shim; across devices too. The flags of
  // both sides count: what is read from dst afterwards is the value of src.
  int32_t (*copy_on_device)(const TpuTensor* dst, const TpuTensor* src);
  // One element into out (16 bytes, dtype of src); src's conj/neg flags are applied.
  int32_t (*read_scalar)(const TpuTensor* src, void* out);

  // devices --------------------------------------------------------------------------------------------------
  int32_t (*device_count)();  // 0 when no plugin; never fails; does not start the client
  int32_t (*current_device)();
  int32_t (*exchange_device)(int32_t);  // returns the previous one; -1: no change
  int32_t (*synchronize)(int32_t device);
  int32_t (*memory_stats)(int32_t device, TpuMemoryStats*);
  void (*reset_peak_stats)(int32_t device);
  void (*reset_accumulated_stats)(int32_t device);
  void (*empty_cache)();
  int32_t (*has_primary_context)(int32_t device);
  uint64_t (*supported_dtypes)(int32_t device);  // bit i: c10::ScalarType i

  // streams and events ----------------------------------------------------------------------------------------
  int64_t (*current_stream)(int32_t device);
  int64_t (*exchange_stream)(int32_t device, int64_t stream);
  int64_t (*new_stream)(int32_t device, int32_t priority);
  int32_t (*stream_query)(int32_t device, int64_t stream, int32_t* done);
  int32_t (*stream_synchronize)(int32_t device, int64_t stream);
  int32_t (*event_record)(void** event, int32_t device, int64_t stream, int32_t timing);
  int32_t (*event_block)(void* event, int32_t device, int64_t stream);
  int32_t (*event_query)(void* event, int32_t* done);
  int32_t (*event_synchronize)(void* event);
  int32_t (*event_elapsed)(void* start, void* end, double* milliseconds);
  void (*event_destroy)(void* event);
  void (*record_stream)(void* storage, int64_t stream);

  // pinned host memory ----------------------------------------------------------------------------------------
  void* (*pinned_new)(size_t nbytes);
  void (*pinned_free)(void*);
  int32_t (*is_pinned)(const void*);

  // Device whose reserved range holds `address`; -1 when none does.
  int32_t (*device_of_address)(const void* address);

  // 1: become PyTorch's accelerator (PrivateUse1 hooks); 0: another one is there and keeps its place.
  int32_t register_hooks;
};

// Functions of the shim, handed to the core when it registers.
struct TpuShimApi {
  uint32_t abi_version;
  uint32_t size;
  // Reads (seed, offset) of a generator (NULL: default generator of `device`) and advances the offset by `increment`.
  int32_t (*rng_advance)(void* generator, int32_t device, uint64_t increment, uint64_t* seed, uint64_t* offset);
  // Reads (write = 0) or sets (write = 1) the state of the default generator of `device`. Starts no client.
  int32_t (*default_generator_state)(int32_t device, int32_t write, uint64_t* seed, uint64_t* offset);
  // NULL-terminated names from native_ops() that this torch does not have, or that are CompositeImplicit and so were
  // not registered (an override would lose their autograd formula).
  const char* const* (*skipped_ops)();
};

// The one symbol of the shim: checks the versions, keeps `core` (which must live as long as the process), registers
// every kernel. NULL on failure, with *error (static storage). Call once, after `import torch`, with the GIL held.
__attribute__((visibility("default"))) const TpuShimApi* tpu_shim_register(const TpuCoreApi* core, const char** error);

}  // extern "C"
