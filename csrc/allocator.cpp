// Device memory: the allocator PyTorch asks, storages, and tensors over them.
#include <ATen/EmptyTensor.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "core.h"

namespace tpu {
namespace {

using c10::CachingAllocator::Stat;

// Deriving from DeviceAllocator is what makes torch.accelerator's memory functions and empty_cache work.
struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override { return new_storage(nbytes, core->current_device()); }

  // The context of a DataPtr is the core's handle, not its address, so there is no deleter for a raw address.
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

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const auto stats = memory_stats(device);
    Stat bytes;
    bytes.current = stats.allocated_current;
    bytes.peak = stats.allocated_peak;
    bytes.allocated = stats.allocated_total;
    bytes.freed = stats.freed_total;
    Stat blocks;
    blocks.current = stats.blocks_current;
    blocks.peak = stats.blocks_peak;
    blocks.allocated = stats.blocks_total;
    blocks.freed = stats.blocks_freed;
    constexpr auto kAggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    c10::CachingDeviceAllocator::DeviceStats result;
    for (auto* stat :
         {&result.allocated_bytes, &result.reserved_bytes, &result.active_bytes, &result.requested_bytes}) {
      (*stat)[kAggregate] = bytes;
    }
    for (auto* stat : {&result.allocation, &result.segment, &result.active}) (*stat)[kAggregate] = blocks;
    result.num_ooms = stats.ooms;
    result.num_device_alloc = stats.blocks_total;
    result.num_device_free = stats.blocks_freed;
    return result;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override { core->reset_accumulated_stats(resolve(device)); }
  void resetPeakStats(c10::DeviceIndex device) override { core->reset_peak_stats(resolve(device)); }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto stats = memory_stats(device);
    return {static_cast<size_t>(stats.free_bytes), static_cast<size_t>(stats.total_bytes)};
  }

 private:
  static int32_t resolve(c10::DeviceIndex device) {
    const int32_t index = index_or_current(c10::Device(kTpu, device));
    check_device_index(index);
    return index;
  }

  static TpuMemoryStats memory_stats(c10::DeviceIndex device) {
    TpuMemoryStats stats{};
    check(core->memory_stats(resolve(device), &stats));
    return stats;
  }
};

}  // namespace

c10::Allocator* allocator() {
  static auto* instance = new Allocator;  // outlives every tensor
  return instance;
}

void register_allocator() {
  c10::SetAllocator(kTpu, allocator());
}

void resize_storage(c10::StorageImpl* storage, size_t nbytes) {
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  void* handle = nullptr;
  void* address = nullptr;
  check(core->storage_resized(storage->_mutable_data_ptr_no_checks().get_context(), nbytes, &handle, &address));
  storage->set_data_ptr_noswap({address, handle, core->storage_free, storage->device()});
  storage->set_nbytes(nbytes);
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
  auto data = C10_UNLIKELY(shape_only != nullptr)
                  ? c10::DataPtr(nullptr, c10::Device(kTpu, static_cast<c10::DeviceIndex>(device)))
                  : new_storage(nbytes, device);
  return wrap_storage(std::move(data), nbytes, sizes, strides, dtype);
}

void resize_tensor(at::TensorImpl* self, at::IntArrayRef sizes, const at::IntArrayRef* strides) {
  if (self->sizes() == sizes && (!strides || self->strides() == *strides)) return;
  const auto itemsize = self->itemsize();
  const auto offset = self->storage_offset();
  const size_t nbytes = strides ? at::detail::computeStorageNbytes(sizes, *strides, itemsize, offset)
                                : at::detail::computeStorageNbytesContiguous(sizes, itemsize, offset);
  if (strides) {
    self->set_sizes_and_strides(sizes, *strides);
  } else {
    self->set_sizes_contiguous(sizes);
  }
  auto* storage = self->unsafe_storage().unsafeGetStorageImpl();
  if (self->numel() != 0 && nbytes > storage->nbytes()) resize_storage(storage, nbytes);
}

}  // namespace tpu
