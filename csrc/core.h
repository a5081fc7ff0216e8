// How the shim reaches the Rust core, how the core's statuses become exceptions, and what the files share.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <torch/library.h>

#include "shim.h"

namespace tpu {

constexpr c10::DeviceType kTpu = c10::DeviceType::PrivateUse1;

extern const TpuCoreApi* core;  // set by tpu_shim_register before anything that uses it is registered

// Set while a structured kernel is asked, on this thread, for the metadata of its outputs: nothing is allocated or run.
extern thread_local const c10::OperatorHandle* shape_only;

[[noreturn]] void throw_status(int32_t status);
inline void check(int32_t status) {
  if (C10_UNLIKELY(status != TPU_OK)) throw_status(status);
}

inline c10::Device device_at(int64_t index) { return c10::Device(kTpu, static_cast<c10::DeviceIndex>(index)); }
// The device's index, or the current one's; raises when there is no such device.
int32_t device_index(c10::Device device);

c10::Allocator* allocator();
c10::Allocator* pinned_allocator();
c10::DataPtr new_storage(size_t nbytes, int32_t device);
void resize_storage(c10::StorageImpl* storage, size_t nbytes);  // keeps the common prefix of its bytes
at::Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, int32_t device);
// Contiguous when `strides` is null; grows the storage, as resize_ does.
void resize_tensor(at::TensorImpl* self, at::IntArrayRef sizes, const at::IntArrayRef* strides);

// Makes a storage around a bare device address (at::from_blob, as in torch.save's old format) an owner of its storage.
void adopt_address(c10::StorageImpl* storage);

// Borrows the tensor's sizes and strides.
inline TpuTensor describe(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  TORCH_CHECK_NOT_IMPLEMENTED(C10_LIKELY(impl->has_storage()), "tpu: tensors with layout ", impl->layout(),
                              " are not supported beside tpu tensors; convert them with to_dense()");
  const auto device = impl->device();
  const bool ours = device.type() == kTpu;
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  const auto& data = storage->_mutable_data_ptr_no_checks();
  if (C10_UNLIKELY(ours && data.get_deleter() != core->storage_free && data.get())) adopt_address(storage);
  const auto* host = ours ? nullptr : static_cast<const char*>(data.get());
  const int flags = (impl->is_wrapped_number() ? TPU_WRAPPED_NUMBER : 0) | (tensor.is_conj() ? TPU_CONJ : 0) |
                    (tensor.is_neg() ? TPU_NEG : 0);
  return {ours ? data.get_context() : nullptr,
          host ? host + impl->storage_offset() * impl->itemsize() : nullptr,
          impl->sizes().data(),
          impl->strides().data(),
          impl->storage_offset(),
          static_cast<int32_t>(impl->dim()),
          static_cast<int8_t>(tensor.scalar_type()),
          static_cast<int8_t>(device.type()),
          device.index(),
          static_cast<uint8_t>(flags)};
}

// Kept for the life of the process: undoing registrations at exit would race with tensors that still exist.
torch::Library& keep_library(const char* ns, c10::DispatchKey key);
void register_devices();
void register_kernels();
void register_dispatch();
void register_autocast();

at::Generator new_generator(int32_t device);
const at::Generator& default_generator(int32_t device);
int32_t rng_advance(void* generator, int32_t device, uint64_t increment, uint64_t* seed, uint64_t* offset) noexcept;
int32_t set_default_generator(int32_t device, uint64_t seed, uint64_t offset) noexcept;

}  // namespace tpu
