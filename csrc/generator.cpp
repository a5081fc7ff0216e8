// Counter-based random state: (seed, offset). The core turns it into numbers; no state lives on the device.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>

#include <array>
#include <cstring>
#include <mutex>

#include "core.h"

namespace tpu {
namespace {

// Seed then offset in host byte order: the 16 bytes that CUDA has and DTensor asserts. Philox gives four 32-bit numbers
// per counter step, so offsets stay multiples of four.
struct State {
  uint64_t seed = c10::default_rng_seed_val, offset = 0;
};
constexpr uint64_t kOffsetUnit = 4;

// c10 calls these methods with mutex_ held.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(c10::Device device) : GeneratorImpl(device, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override { state = {seed, 0}; }
  uint64_t current_seed() const override { return state.seed; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return state.seed;
  }
  void set_offset(uint64_t offset) override { set({state.seed, offset}); }
  uint64_t get_offset() const override { return state.offset; }
  void set_state(const c10::TensorImpl& tensor) override {
    at::detail::check_rng_state(tensor);
    TORCH_CHECK(tensor.numel() == sizeof(State), "RNG state is wrong size: a tpu generator has ", sizeof(State),
                " bytes (seed, offset), got ", tensor.numel());
    State next;
    std::memcpy(&next, tensor.data(), sizeof(State));  // a slice need not be aligned
    set(next);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor tensor(at::detail::empty_cpu({sizeof(State)}, at::kByte));
    *static_cast<State*>(tensor.mutable_data_ptr()) = state;
    return tensor.getIntrusivePtr();
  }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device_);
    copy->state = state;
    return copy;
  }
  void set(State next) {
    TORCH_CHECK(next.offset % kOffsetUnit == 0, "tpu: a generator's offset must be a multiple of 4, got ", next.offset);
    state = next;
  }

  State state;
};

// Runs f(state) under the lock of `generator`, or of the default generator of `device`.
template <class F>
int32_t locked(void* generator, int32_t device, F&& f) noexcept {
  try {
    auto* impl =
        generator ? static_cast<c10::GeneratorImpl*>(generator) : default_generator(device).unsafeGetGeneratorImpl();
    const std::lock_guard<std::mutex> lock(impl->mutex_);
    f(*static_cast<Generator*>(impl));
    return TPU_OK;
  } catch (const std::exception&) { return TPU_VALUE_ERROR; }
}

}  // namespace

at::Generator new_generator(int32_t device) {
  return at::make_generator<Generator>(device_at(device_index(device_at(device))));
}

const at::Generator& default_generator(int32_t device) {
  static std::mutex mutex;
  static auto& generators = *new std::array<at::Generator, 128>;  // c10::DeviceIndex is an int8_t
  const int32_t index = device_index(device_at(device));
  const std::lock_guard<std::mutex> lock(mutex);
  auto& generator = generators[static_cast<size_t>(index)];
  if (!generator.defined()) generator = new_generator(index);
  return generator;
}

int32_t rng_advance(void* generator, int32_t device, uint64_t increment, uint64_t* seed, uint64_t* offset) noexcept {
  return locked(generator, device, [&](Generator& impl) {
    *seed = impl.state.seed, *offset = impl.state.offset;
    impl.state.offset += (increment + kOffsetUnit - 1) / kOffsetUnit * kOffsetUnit;
  });
}

int32_t set_default_generator(int32_t device, uint64_t seed, uint64_t offset) noexcept {
  return locked(nullptr, device, [&](Generator& impl) { impl.set({seed, offset}); });
}

}  // namespace tpu
