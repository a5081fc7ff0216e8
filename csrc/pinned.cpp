// Page-locked host memory, owned by the core; to PyTorch it is CPU memory.
#include "core.h"

namespace tpu {

c10::Allocator* pinned_allocator() {
  struct PinnedAllocator final : c10::Allocator {
    c10::DataPtr allocate(size_t nbytes) override {
      void* memory = nbytes ? core->pinned_new(nbytes) : nullptr;
      TORCH_CHECK_WITH(OutOfMemoryError, memory || !nbytes, "tpu: cannot allocate ", nbytes, " bytes of pinned memory");
      return {memory, memory, memory ? core->pinned_free : c10::detail::deleteNothing, c10::Device(c10::kCPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return core->pinned_free; }
    void copy_data(void* dst, const void* src, size_t nbytes) const override { default_copy_data(dst, src, nbytes); }
  };
  static auto* instance = new PinnedAllocator;
  return instance;
}

}  // namespace tpu
