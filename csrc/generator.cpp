// Generators: PyTorch's objects over states that the core keeps.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>

#include <cstring>
#include <vector>

#include "core.h"

namespace tpu {
namespace {

// As a tensor: seed, then offset, in host byte order. These are the 16 bytes that CUDA has and DTensor asserts.
using State = abi::RngState;

struct Generator final : c10::GeneratorImpl {
  Generator(c10::Device device, uint64_t generator_number)
      : GeneratorImpl(device, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), number(generator_number) {}
  ~Generator() override { core->generator_free(number); }

  void set_current_seed(uint64_t seed) override { set({seed, 0}); }
  uint64_t current_seed() const override { return get().seed; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return current_seed();
  }
  void set_offset(uint64_t offset) override { set({get().seed, offset}); }
  uint64_t get_offset() const override { return get().offset; }
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
    *static_cast<State*>(tensor.mutable_data_ptr()) = get();
    return tensor.getIntrusivePtr();
  }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device_, core->generator_new());
    copy->set(get());
    return copy;
  }

  State get() const { return core->generator_state(number); }
  void set(State state) { check(core->generator_set_state(number, state)); }

  const uint64_t number;
};

}  // namespace

at::Generator new_generator(int32_t device) {
  return at::make_generator<Generator>(device_at(device_index(device)), core->generator_new());
}

const at::Generator& default_generator(int32_t device) {
  static const auto& generators = *[] {
    auto* made = new std::vector<at::Generator>;
    for (int32_t i = 0; i < core->device_count(); ++i) made->push_back(at::make_generator<Generator>(device_at(i), i));
    return made;
  }();
  return generators.at(static_cast<size_t>(device_index(device)));
}

uint64_t generator_number(const at::Generator& generator) {
  return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->number;
}

}  // namespace tpu
