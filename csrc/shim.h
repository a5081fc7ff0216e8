// The plain-C boundary between the C++ shim (one per torch minor) and the Rust core: no C++ type, no exception and no
// operator knowledge crosses it. crates/bridge/src/abi.rs mirrors these structs; a change to either bumps the version.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define TPU_ABI_VERSION 2u

extern "C" {

enum TpuTensorFlags : uint8_t { TPU_WRAPPED_NUMBER = 1, TPU_CONJ = 2, TPU_NEG = 4 };

// A strided tensor. On the device `storage` is set (the core's handle: the DataPtr's context), on the host `host`
// (address of the first element). dtypes are c10::ScalarType.
struct TpuTensor {
  void* storage;
  const void* host;
  const int64_t *sizes, *strides;
  int64_t offset;  // in elements
  int32_t ndim;
  int8_t dtype, device_type, device_index;
  uint8_t flags;
};

enum TpuTag : int32_t {
  TPU_NONE,  // also an undefined tensor
  TPU_TENSOR,
  TPU_INT,  // u.i; also SymInt, dtype, layout, memory format
  TPU_DOUBLE,
  TPU_BOOL,  // u.i
  TPU_COMPLEX,
  TPU_STRING,       // NUL-terminated
  TPU_INT_LIST,     // u.list of int64_t
  TPU_DOUBLE_LIST,  // u.list of double
  TPU_BOOL_LIST,    // u.list of uint8_t
  TPU_VALUE_LIST,   // u.list of TpuValue: lists of tensors, of optional tensors, of Scalars
  TPU_DEVICE,       // u.i = type << 32 | (uint8_t)index
  TPU_GENERATOR,    // at::GeneratorImpl*, only handed back through TpuShimApi
  TPU_OTHER,
};

struct TpuList {
  const void* data;
  size_t len;
};

struct TpuValue {
  int32_t tag;
  // Whether the schema type is Scalar (or Scalar?, Scalar[]): a run-time operand unless the operator declares it an
  // attribute.
  int32_t is_scalar;
  union {
    int64_t i;
    double d, c[2];
    const char* string;
    void* generator;
    TpuList list;
    TpuTensor tensor;
  } u;
};

struct TpuCall {
  uint32_t op, nargs;
  const TpuValue* args;
  // Global modes that change programs: bits 0-1 float32 matmul precision (0 highest, 1 high, 2 medium), bit 2
  // deterministic algorithms, bits 8-15 default dtype.
  uint32_t modes;
  int32_t device;  // of the first device tensor or Device argument, else the current one
};

struct TpuMeta {
  const int64_t *sizes, *strides;
  int32_t ndim;
  int8_t dtype;  // -1: undefined tensor
};

// How fresh outputs reach the caller: a Tensor return takes the next output, a Tensor[] return all that the other
// returns leave, a number return one 0-d output. Returns annotated as written are the argument itself.
struct TpuPlanInfo {
  uint32_t nouts;  // fresh outputs, flattened
  const TpuMeta* outs;
  uint32_t host_fallback;  // run at::native::cpu_fallback: the policy allows it
  // The outputs are an upper bound of the one result, valid rows first, and a 0-d tensor: the number of its rows.
  uint32_t bounded;
  // A list that the call writes shares memory with another position of its lists: one program for all positions would
  // not see what the earlier ones write.
  uint32_t by_position;
};

// What PyTorch says about a call from metadata alone.
struct TpuMetaResult {
  // Flattened outputs of the functional form: fresh ones, then one per written argument, in schema order.
  uint32_t nfunctional;
  const TpuMeta* functional;
  uint32_t nmutated;  // written tensors, in the order of the arguments: their metadata after the call
  const TpuMeta* mutated;
  const char* error;  // why there is no metadata (the core decides: host fallback or error), or NULL
};

enum TpuStatus : int32_t {
  TPU_OK = 0,
  TPU_MISS = 1,  // of plan(): find the metadata, then call build()
  // The exception to raise; its message is last_error()'s.
  TPU_RUNTIME_ERROR = 16,
  TPU_VALUE_ERROR,
  TPU_TYPE_ERROR,
  TPU_INDEX_ERROR,
  TPU_NOT_IMPLEMENTED,
  TPU_OUT_OF_MEMORY,
  TPU_PYTHON_ERROR,  // set on this thread
};

struct TpuStat {
  int64_t current, peak, allocated, freed;
};

struct TpuMemoryStats {
  TpuStat bytes, storages;
  int64_t ooms, free_bytes, total_bytes;
};

// What the core offers. Functions that return int32_t give a TpuStatus unless stated otherwise.
struct TpuCoreApi {
  uint32_t abi_version, size;
  int32_t register_hooks;     // whether to become PyTorch's accelerator
  uint64_t supported_dtypes;  // bit i: c10::ScalarType i
  const char* (*last_error)();

  const char* const* (*native_ops)();  // "aten::add.Tensor", ...: want a kernel of their own; NULL-terminated
  // functional: the functional form ("" when there is none). mutated: bit i is set when argument i is written.
  int32_t (*resolve)(const char* name, const char* functional, uint64_t mutated, uint32_t* op);
  int32_t (*plan)(const TpuCall*, TpuPlanInfo*);  // fills what is valid until the thread's next plan
  int32_t (*build)(const TpuCall*, const TpuMetaResult*, TpuPlanInfo*);
  int32_t (*execute)(const TpuCall*, const TpuTensor* outs, uint32_t nouts);

  // *storage is never NULL on TPU_OK; *address is NULL for 0 bytes.
  int32_t (*storage_new)(size_t nbytes, int32_t device, void** storage, void** address);
  void (*storage_free)(void* storage);
  void* (*storage_at)(const void* address);  // another handle of the storage that starts there, or NULL
  // A new storage with the common prefix of old's bytes.
  int32_t (*storage_resized)(void* old, size_t nbytes, void** storage, void** address);
  int32_t (*device_of_address)(const void* address);  // -1: no device's

  // Between a device tensor and a host tensor of its dtype and sizes, dense in the device tensor's memory order (to the
  // host: contiguous where src is not dense). From the host neither side's flags count, to the host src's do.
  // keep: the host memory may be read or written until release(keepalive); else the copy is complete on return.
  // release is called once in any case, maybe on another thread without the GIL.
  int32_t (*copy_from_host)(const TpuTensor* dst, const TpuTensor* src, int32_t keep, void* keepalive,
                            void (*release)(void*));
  int32_t (*copy_to_host)(const TpuTensor* dst, const TpuTensor* src, int32_t keep, void* keepalive,
                          void (*release)(void*));
  int32_t (*copy_on_device)(const TpuTensor* dst, const TpuTensor* src);  // equal sizes; any dtypes, strides and flags
  int32_t (*read_scalar)(const TpuTensor* src, void* out);                // one element, up to 16 bytes

  int32_t (*device_count)();            // the number; starts no client
  int32_t (*current_device)();          // its index
  int32_t (*exchange_device)(int32_t);  // the previous index; -1 changes nothing
  int32_t (*synchronize)(int32_t device);
  int32_t (*has_primary_context)();  // a boolean
  int32_t (*memory_stats)(int32_t device, TpuMemoryStats*);
  void (*reset_peak_stats)(int32_t device);
  void (*reset_accumulated_stats)(int32_t device);

  int64_t (*current_stream)(int32_t device);
  int64_t (*exchange_stream)(int32_t device, int64_t stream);
  int64_t (*new_stream)(int32_t device, int32_t priority);  // negative: an error
  int32_t (*stream_query)(int32_t device, int64_t stream, int32_t* done);
  int32_t (*stream_synchronize)(int32_t device, int64_t stream);
  int32_t (*event_record)(void** event, int32_t device, int64_t stream, int32_t timing);
  int32_t (*event_block)(void* event, int32_t device, int64_t stream);
  int32_t (*event_query)(void* event, int32_t* done);
  int32_t (*event_synchronize)(void* event);
  int32_t (*event_elapsed)(void* start, void* end, double* milliseconds);
  void (*event_destroy)(void* event);
  void (*record_stream)(void* storage, int64_t stream);

  void* (*pinned_new)(size_t nbytes);  // NULL: out of memory
  void (*pinned_free)(void*);
  int32_t (*is_pinned)(const void*);  // a boolean
};

struct TpuShimApi {
  uint32_t abi_version, size;
  // Reads a generator (NULL: the default one of `device`) and advances its offset by `increment`.
  int32_t (*rng_advance)(void* generator, int32_t device, uint64_t increment, uint64_t* seed, uint64_t* offset);
  int32_t (*set_default_generator)(int32_t device, uint64_t seed, uint64_t offset);
};

// The one symbol of the shim: keeps `core`, which must live as long as the process, and registers every kernel. NULL
// with *error (static storage) on failure. Call once, after `import torch`, with the GIL held.
__attribute__((visibility("default"))) const TpuShimApi* tpu_shim_register(const TpuCoreApi* core, const char** error);

}  // extern "C"
