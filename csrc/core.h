// How the shim reaches the Rust core, how the core's statuses become exceptions, and what the files share.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <torch/library.h>

#include "abi.h"  // made of crates/bridge/src/abi.rs

namespace tpu {

constexpr c10::DeviceType kTpu = c10::DeviceType::PrivateUse1;

extern const abi::CoreApi* core;  // set by tpu_shim_register before anything that uses it is registered

// Set while a structured kernel is asked, on this thread, for the metadata of its outputs: nothing is allocated or run.
extern thread_local const c10::OperatorHandle* shape_only;

[[noreturn]] void throw_status(abi::Status status);
inline void check(abi::Status status) {
  if (C10_UNLIKELY(status != abi::Status::Ok)) throw_status(status);
}

inline c10::Device device_at(int64_t index) { return c10::Device(kTpu, static_cast<c10::DeviceIndex>(index)); }
// The device's index, or the current one's; raises when there is no such device.
int32_t device_index(c10::Device device);
inline int32_t device_index(int64_t index) { return device_index(device_at(index)); }

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
inline abi::Tensor describe(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  TORCH_CHECK_NOT_IMPLEMENTED(C10_LIKELY(impl->has_storage()), "tpu: tensors with layout ", impl->layout(),
                              " are not supported beside tpu tensors; convert them with to_dense()");
  const auto device = impl->device();
  const bool ours = device.type() == kTpu;
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  const auto& data = storage->_mutable_data_ptr_no_checks();
  if (C10_UNLIKELY(ours && data.get_deleter() != core->storage_free && data.get())) adopt_address(storage);
  const auto* host = ours ? nullptr : static_cast<const char*>(data.get());
  const int flags = (impl->is_wrapped_number() ? abi::FLAG_WRAPPED_NUMBER : 0) |
                    (tensor.is_conj() ? abi::FLAG_CONJ : 0) | (tensor.is_neg() ? abi::FLAG_NEG : 0);
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
uint64_t generator_number(const at::Generator& generator);

}  // namespace tpu
