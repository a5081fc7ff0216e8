// Memory: the allocators PyTorch asks, storages, and tensors over them.
#include <ATen/EmptyTensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/strides.h>

#include "core.h"

namespace tpu {
namespace {

// Deriving from DeviceAllocator is what makes torch.accelerator's memory functions and empty_cache work.
struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override { return new_storage(nbytes, core->current_device()); }
  // The context of a DataPtr is the core's handle, not its address, so a raw address has no deleter.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "tpu: copying raw storage memory is not supported");
  }

  bool initialized() override { return core->has_primary_context(); }
  void emptyCache(c10::MempoolId_t) override {}  // PJRT has the only cache
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    core->record_stream(data.get_context(), stream.id());
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { core->reset_accumulated_stats(device_index(device)); }
  void resetPeakStats(c10::DeviceIndex device) override { core->reset_peak_stats(device_index(device)); }

  static abi::MemoryStats memory_stats(c10::DeviceIndex device) {
    abi::MemoryStats stats{};
    check(core->memory_stats(device_index(device), &stats));
    return stats;
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto stats = memory_stats(device);
    return {static_cast<size_t>(stats.free_bytes), static_cast<size_t>(stats.total_bytes)};
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const auto stats = memory_stats(device);
    c10::CachingDeviceAllocator::DeviceStats out;
    const auto set = [](c10::CachingAllocator::StatArray* array, const abi::Stat& from) {
      auto& stat = (*array)[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
      stat.current = from.current, stat.peak = from.peak, stat.allocated = from.allocated, stat.freed = from.freed;
    };
    for (auto* sum : {&out.allocated_bytes, &out.reserved_bytes, &out.active_bytes, &out.requested_bytes})
      set(sum, stats.bytes);
    for (auto* count : {&out.allocation, &out.segment, &out.active}) set(count, stats.storages);
    out.num_ooms = stats.ooms;
    out.num_device_alloc = stats.storages.allocated;
    out.num_device_free = stats.storages.freed;
    return out;
  }
};

// Page-locked host memory, owned by the core; to PyTorch it is CPU memory.
struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    void* memory = nbytes ? core->pinned_new(nbytes) : nullptr;
    TORCH_CHECK_WITH(OutOfMemoryError, memory || !nbytes, "tpu: cannot allocate ", nbytes, " bytes of pinned memory");
    return {memory, memory, memory ? core->pinned_free : c10::detail::deleteNothing, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return core->pinned_free; }
  void copy_data(void* dst, const void* src, size_t nbytes) const override { default_copy_data(dst, src, nbytes); }
};

}  // namespace

c10::Allocator* allocator() {
  static auto* instance = new Allocator;  // outlives every tensor
  return instance;
}

c10::Allocator* pinned_allocator() {
  static auto* instance = new PinnedAllocator;
  return instance;
}

c10::DataPtr new_storage(size_t nbytes, int32_t device) {
  void *storage = nullptr, *address = nullptr;
  check(core->storage_new(nbytes, device, &storage, &address));
  return {address, storage, core->storage_free, device_at(device)};
}

void resize_storage(c10::StorageImpl* storage, size_t nbytes) {
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  void *handle = nullptr, *address = nullptr;
  check(core->storage_resized(storage->_mutable_data_ptr_no_checks().get_context(), nbytes, &handle, &address));
  storage->set_data_ptr_noswap({address, handle, core->storage_free, storage->device()});
  storage->set_nbytes(nbytes);
}

void adopt_address(c10::StorageImpl* storage) {
  const auto& data = storage->_mutable_data_ptr_no_checks();
  void* handle = data.get_context() ? nullptr : core->storage_at(data.get());
  TORCH_CHECK_NOT_IMPLEMENTED(handle, "tpu: a tensor was made from an address that is not the start of a storage");
  storage->set_data_ptr_noswap({data.get(), handle, core->storage_free, storage->device()});
}

at::Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, int32_t device) {
  const size_t nbytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(nbytes),
      shape_only ? c10::DataPtr(nullptr, device_at(device)) : new_storage(nbytes, device), allocator(), true);
  auto tensor = at::detail::make_tensor<at::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

void resize_tensor(at::TensorImpl* self, at::IntArrayRef sizes, const at::IntArrayRef* strides) {
  if (self->sizes() == sizes && (!strides || self->strides() == *strides)) return;
  const auto contiguous = strides ? at::DimVector() : c10::contiguous_strides(sizes);
  const at::IntArrayRef new_strides = strides ? *strides : at::IntArrayRef(contiguous);
  const size_t nbytes = at::detail::computeStorageNbytes(sizes, new_strides, self->itemsize(), self->storage_offset());
  auto* storage = self->unsafe_storage().unsafeGetStorageImpl();
  if (!shape_only && c10::multiply_integers(sizes) != 0 && nbytes > storage->nbytes()) resize_storage(storage, nbytes);
  self->set_sizes_and_strides(sizes, new_strides);
}

}  // namespace tpu
