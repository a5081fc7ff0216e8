// Entry point, the core pointer, and exceptions.
#include <torch/csrc/Exceptions.h>

#include "core.h"

namespace tpu {

const abi::CoreApi* core = nullptr;

void throw_status(abi::Status status) {
  if (status == abi::Status::PythonError) torch::throw_python_error();
  const char* message = core->last_error();
  const std::string text = message ? message : "tpu: unknown error";
  switch (status) {
    case abi::Status::ValueError: C10_THROW_ERROR(ValueError, text);
    case abi::Status::TypeError: C10_THROW_ERROR(TypeError, text);
    case abi::Status::IndexError: C10_THROW_ERROR(IndexError, text);
    case abi::Status::LinAlgError: C10_THROW_ERROR(LinAlgError, text);
    case abi::Status::NotImplemented: C10_THROW_ERROR(NotImplementedError, text);
    case abi::Status::OutOfMemory: C10_THROW_ERROR(OutOfMemoryError, text);
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

void register_all(const abi::CoreApi* api) {
  if (core == api) return;
  TORCH_CHECK(!core, "the tpu shim is already registered with another core");
  TORCH_CHECK(api->abi_version == abi::ABI_VERSION && api->size == sizeof(abi::CoreApi), "the tpu shim speaks ABI ",
              abi::ABI_VERSION, " (", sizeof(abi::CoreApi), " bytes) and the core ABI ", api->abi_version, " (",
              api->size, " bytes): reinstall torch-pjrt so that both come from one build");
  core = api;
  c10::SetAllocator(kTpu, allocator());
  register_devices();
  register_kernels();
  register_dispatch();
  register_autocast();
}

}  // namespace
}  // namespace tpu

extern "C" __attribute__((visibility("default"))) const char* tpu_shim_register(const tpu::abi::CoreApi* core) {
  static std::string failure;
  try {
    tpu::register_all(core);
    return nullptr;
  } catch (const c10::Error& e) { failure = e.what_without_backtrace(); } catch (const std::exception& e) {
    failure = e.what();
  }
  return failure.c_str();
}

static_assert(std::is_same_v<decltype(&tpu_shim_register), tpu::abi::Register>);
