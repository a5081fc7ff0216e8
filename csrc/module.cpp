// Entry point, the core pointer, and exceptions.
#include <torch/csrc/Exceptions.h>

#include "core.h"

namespace tpu {

const TpuCoreApi* core = nullptr;

void throw_status(int32_t status) {
  if (status == TPU_PYTHON_ERROR) torch::throw_python_error();
  const char* message = core->last_error();
  const std::string text = message ? message : "tpu: unknown error";
  switch (status) {
    case TPU_VALUE_ERROR: C10_THROW_ERROR(ValueError, text);
    case TPU_TYPE_ERROR: C10_THROW_ERROR(TypeError, text);
    case TPU_INDEX_ERROR: C10_THROW_ERROR(IndexError, text);
    case TPU_NOT_IMPLEMENTED: C10_THROW_ERROR(NotImplementedError, text);
    case TPU_OUT_OF_MEMORY: C10_THROW_ERROR(OutOfMemoryError, text);
    default: C10_THROW_ERROR(Error, text);
  }
}

int32_t device_index(c10::Device device) {
  const int32_t index = device.has_index() ? device.index() : core->current_device(), count = core->device_count();
  TORCH_CHECK(index >= 0 && index < count, "invalid device ordinal ", index, ": ", count,
              " tpu device(s) are available");
  return index;
}

torch::Library& keep_library(const char* ns, c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, ns, key, "csrc/module.cpp", 0);
}

namespace {

const TpuShimApi shim_api = {TPU_ABI_VERSION, sizeof(TpuShimApi), rng_advance, set_default_generator};

void register_all(const TpuCoreApi* api) {
  if (core == api) return;
  TORCH_CHECK(!core, "the tpu shim is already registered with another core");
  TORCH_CHECK(api->abi_version == TPU_ABI_VERSION && api->size == sizeof(TpuCoreApi), "the tpu shim speaks ABI ",
              TPU_ABI_VERSION, " (", sizeof(TpuCoreApi), " bytes) and the core ABI ", api->abi_version, " (", api->size,
              " bytes): reinstall torch-pjrt so that both come from one build");
  core = api;
  c10::SetAllocator(kTpu, allocator());
  register_devices();
  register_kernels();
  register_dispatch();
  register_autocast();
}

}  // namespace
}  // namespace tpu

const TpuShimApi* tpu_shim_register(const TpuCoreApi* core, const char** error) {
  static std::string failure;
  try {
    tpu::register_all(core);
    return &tpu::shim_api;
  } catch (const c10::Error& e) { failure = e.what_without_backtrace(); } catch (const std::exception& e) {
    failure = e.what();
  }
  *error = failure.c_str();
  return nullptr;
}
