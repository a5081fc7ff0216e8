// Counter-based random state: (seed, offset). The core turns it into numbers; no state lives on the device.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>

#include <array>
#include <cstring>
#include <mutex>

#include "core.h"

namespace tpu {
namespace {

// Philox gives four 32-bit numbers per counter step; offsets stay multiples of four, as CUDA's do, so that a state can
// be moved between devices and cut by DTensor's random tracker.
constexpr uint64_t kOffsetUnit = 4;

void check_offset(uint64_t offset) {
  TORCH_CHECK(offset % kOffsetUnit == 0, "tpu: the offset of a generator must be a multiple of 4, got ", offset);
}

// c10 calls these methods with mutex_ held.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(c10::DeviceIndex device)
      : GeneratorImpl(c10::Device(kTpu, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  // Seed then offset, in host byte order: the layout that CUDA has and DTensor asserts.
  struct State {
    uint64_t seed = c10::default_rng_seed_val;
    uint64_t offset = 0;
  };

  void set_current_seed(uint64_t seed) override { state = {seed, 0}; }
  uint64_t current_seed() const override { return state.seed; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return state.seed;
  }
  void set_offset(uint64_t offset) override {
    check_offset(offset);
    state.offset = offset;
  }
  uint64_t get_offset() const override { return state.offset; }

  void set_state(const c10::TensorImpl& tensor) override {
    TORCH_CHECK_TYPE(tensor.layout() == at::kStrided && tensor.device().is_cpu() &&
                         tensor.dtype() == caffe2::TypeMeta::Make<uint8_t>() && tensor.is_contiguous(),
                     "RNG state must be a contiguous torch.ByteTensor on the CPU");
    TORCH_CHECK(tensor.numel() == sizeof(State), "RNG state is wrong size: a tpu generator has ", sizeof(State),
                " bytes (seed, offset), got ", tensor.numel());
    State next;
    std::memcpy(&next, tensor.data(), sizeof(State));
    check_offset(next.offset);
    state = next;
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor tensor(at::detail::empty_cpu({sizeof(State)}, at::kByte));
    std::memcpy(tensor.mutable_data_ptr(), &state, sizeof(State));
    return tensor.getIntrusivePtr();
  }

  Generator* clone_impl() const override {
    auto* copy = new Generator(device_.index());
    copy->state = state;
    return copy;
  }

  State state;
};

Generator& resolve(void* generator, int32_t device) {
  auto* impl =
      generator ? static_cast<c10::GeneratorImpl*>(generator) : default_generator(device).unsafeGetGeneratorImpl();
  return *static_cast<Generator*>(impl);
}

}  // namespace

at::Generator new_generator(int32_t device) {
  const int32_t index = index_or_current(c10::Device(kTpu, static_cast<c10::DeviceIndex>(device)));
  check_device_index(index);
  return at::make_generator<Generator>(static_cast<c10::DeviceIndex>(index));
}

const at::Generator& default_generator(int32_t device) {
  static std::mutex mutex;
  static auto& generators = *new std::array<at::Generator, 128>;  // c10::DeviceIndex is an int8_t
  const int32_t index = index_or_current(c10::Device(kTpu, static_cast<c10::DeviceIndex>(device)));
  check_device_index(index);
  const std::lock_guard<std::mutex> lock(mutex);
  auto& generator = generators[static_cast<size_t>(index)];
  if (!generator.defined()) generator = new_generator(index);
  return generator;
}

int32_t rng_advance(void* generator, int32_t device, uint64_t increment, uint64_t* seed, uint64_t* offset) noexcept {
  try {
    auto& impl = resolve(generator, device);
    const std::lock_guard<std::mutex> lock(impl.mutex_);
    *seed = impl.state.seed;
    *offset = impl.state.offset;
    impl.state.offset += (increment + kOffsetUnit - 1) / kOffsetUnit * kOffsetUnit;
    return TPU_OK;
  } catch (const std::exception&) {
    return TPU_RUNTIME_ERROR;
  }
}

int32_t default_generator_state(int32_t device, int32_t write, uint64_t* seed, uint64_t* offset) noexcept {
  try {
    auto& impl = resolve(nullptr, device);
    const std::lock_guard<std::mutex> lock(impl.mutex_);
    if (write) {
      if (*offset % kOffsetUnit != 0) return TPU_VALUE_ERROR;
      impl.state = {*seed, *offset};
    }
    *seed = impl.state.seed;
    *offset = impl.state.offset;
    return TPU_OK;
  } catch (const std::exception&) {
    return TPU_RUNTIME_ERROR;
  }
}

}  // namespace tpu
