// Page-locked host memory, owned by the core; to PyTorch it is CPU memory.
#include "core.h"

namespace tpu {
namespace {

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (nbytes == 0) return {nullptr, cpu};
    void* memory = core->pinned_new(nbytes);
    TORCH_CHECK_WITH(OutOfMemoryError, memory, "tpu: cannot allocate ", nbytes, " bytes of pinned host memory");
    return {memory, memory, core->pinned_free, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return core->pinned_free; }
  void copy_data(void* dst, const void* src, size_t nbytes) const override { default_copy_data(dst, src, nbytes); }
};

}  // namespace

c10::Allocator* pinned_allocator() {
  static auto* instance = new PinnedAllocator;
  return instance;
}

}  // namespace tpu
