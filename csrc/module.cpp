// Entry point, the core pointer, and exceptions.
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/Exceptions.h>

#include <string>

#include "core.h"

namespace tpu {

const TpuCoreApi* core = nullptr;

void throw_status(int32_t status) {
  if (status == TPU_PYTHON_ERROR) torch::throw_python_error();
  const char* message = core->last_error();
  const std::string text = message ? message : "tpu: unknown error";
  switch (status) {
    case TPU_VALUE_ERROR:
      C10_THROW_ERROR(ValueError, text);
    case TPU_TYPE_ERROR:
      C10_THROW_ERROR(TypeError, text);
    case TPU_INDEX_ERROR:
      C10_THROW_ERROR(IndexError, text);
    case TPU_NOT_IMPLEMENTED:
      C10_THROW_ERROR(NotImplementedError, text);
    case TPU_OUT_OF_MEMORY:
      C10_THROW_ERROR(OutOfMemoryError, text);
    default:
      C10_THROW_ERROR(Error, text);
  }
}

void check_device_index(int32_t index) {
  const int32_t count = core->device_count();
  TORCH_CHECK(index >= 0 && index < count, "tpu: invalid device index ", index, "; ", count, " device",
              count == 1 ? " is" : "s are", " available");
}

torch::Library& keep_library(const char* ns, c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, ns, key, __FILE__, __LINE__);
}

namespace {

const TpuShimApi shim_api = {TPU_ABI_VERSION, sizeof(TpuShimApi), rng_advance, default_generator_state, skipped_ops};

const char* register_all(const TpuCoreApi* api) {
  static std::string failure;
  if (core) return core == api ? nullptr : "the tpu shim is already registered with another core";
  if (api->abi_version != TPU_ABI_VERSION || api->size != sizeof(TpuCoreApi)) {
    failure =
        c10::str("the tpu shim speaks ABI ", TPU_ABI_VERSION, " (", sizeof(TpuCoreApi), " bytes) and the core ABI ",
                 api->abi_version, " (", api->size, " bytes): reinstall torch-pjrt so that both come from one build");
    return failure.c_str();
  }
  core = api;
  try {
    register_allocator();
    register_guard();
    if (core->register_hooks) register_hooks();
    register_kernels();
    register_dispatch();
    register_autocast();
  } catch (const std::exception& e) {
    failure = e.what();
    return failure.c_str();
  }
  return nullptr;
}

}  // namespace
}  // namespace tpu

const TpuShimApi* tpu_shim_register(const TpuCoreApi* core, const char** error) {
  *error = tpu::register_all(core);
  return *error ? nullptr : &tpu::shim_api;
}
