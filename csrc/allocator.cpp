// Device memory: the allocator PyTorch asks, storages, and tensors over them.
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
  void copy_data(void* dst, const void* src, size_t nbytes) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(core->storage_copy, "tpu: copying raw storage memory is not supported");
    check(core->storage_copy(dst, src, nbytes));
  }

  bool initialized() override { return core->has_primary_context(core->current_device()) != 0; }
  void emptyCache(c10::MempoolId_t) override { core->empty_cache(); }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    core->record_stream(data.get_context(), stream.id());
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    core->reset_accumulated_stats(device_index(device_at(device)));
  }
  void resetPeakStats(c10::DeviceIndex device) override { core->reset_peak_stats(device_index(device_at(device))); }

  static TpuMemoryStats memory_stats(c10::DeviceIndex device) {
    TpuMemoryStats stats{};
    check(core->memory_stats(device_index(device_at(device)), &stats));
    return stats;
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto stats = memory_stats(device);
    return {static_cast<size_t>(stats.free_bytes), static_cast<size_t>(stats.total_bytes)};
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const auto stats = memory_stats(device);
    const auto stat = [](int64_t current, int64_t peak, int64_t allocated, int64_t freed) {
      c10::CachingAllocator::Stat result;
      result.current = current, result.peak = peak, result.allocated = allocated, result.freed = freed;
      return result;
    };
    const auto bytes = stat(stats.allocated_current, stats.allocated_peak, stats.allocated_total, stats.freed_total);
    const auto blocks = stat(stats.blocks_current, stats.blocks_peak, stats.blocks_total, stats.blocks_freed);
    constexpr auto kAggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    c10::CachingDeviceAllocator::DeviceStats out;
    for (auto* sum : {&out.allocated_bytes, &out.reserved_bytes, &out.active_bytes, &out.requested_bytes})
      (*sum)[kAggregate] = bytes;
    for (auto* count : {&out.allocation, &out.segment, &out.active}) (*count)[kAggregate] = blocks;
    out.num_ooms = stats.ooms;
    out.num_device_alloc = stats.blocks_total;
    out.num_device_free = stats.blocks_freed;
    return out;
  }
};

}  // namespace

c10::Allocator* allocator() {
  static auto* instance = new Allocator;  // outlives every tensor
  return instance;
}

void register_allocator() { c10::SetAllocator(kTpu, allocator()); }

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

at::Tensor wrap_storage(c10::DataPtr data, size_t nbytes, at::IntArrayRef sizes, at::IntArrayRef strides,
                        at::ScalarType dtype) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(nbytes), std::move(data), allocator(), true);
  auto tensor = at::detail::make_tensor<at::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

at::Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, int32_t device) {
  const size_t nbytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  auto data = shape_only ? c10::DataPtr(nullptr, device_at(device)) : new_storage(nbytes, device);
  return wrap_storage(std::move(data), nbytes, sizes, strides, dtype);
}

void resize_tensor(at::TensorImpl* self, at::IntArrayRef sizes, const at::IntArrayRef* strides) {
  if (self->sizes() == sizes && (!strides || self->strides() == *strides)) return;
  const auto contiguous = strides ? at::DimVector() : c10::contiguous_strides(sizes);
  const at::IntArrayRef new_strides = strides ? *strides : at::IntArrayRef(contiguous);
  const size_t nbytes = at::detail::computeStorageNbytes(sizes, new_strides, self->itemsize(), self->storage_offset());
  auto* storage = self->unsafe_storage().unsafeGetStorageImpl();
  if (c10::multiply_integers(sizes) != 0 && nbytes > storage->nbytes()) resize_storage(storage, nbytes);
  self->set_sizes_and_strides(sizes, new_strides);
}

}  // namespace tpu
