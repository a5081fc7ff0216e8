// Plan misses: PyTorch's own kernels say, from metadata alone, what the outputs look like or what is wrong with the
// call.
#include <ATen/MemoryOverlap.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <unordered_map>

#include "operators.h"

namespace tpu {

thread_local const c10::OperatorHandle* shape_only = nullptr;

namespace {

using at::Tensor;
using c10::IValue;

// The state of a thread that has done nothing: neither Meta kernels nor the tracing of decompositions may run under the
// caller's modes, autocast, functorch levels or inference mode. Without gradients.
const at::ThreadLocalState& fresh_state() {
  static const auto* state = [] {
    at::ThreadLocalState* made = nullptr;
    std::thread([&] { made = new at::ThreadLocalState; }).join();
    made->set_grad_mode(false);
    return made;
  }();
  return *state;
}

// Mirrors tensors on Meta. Those that share a storage share a Meta storage, so that PyTorch's overlap checks fire.
struct MetaMirror {
  Tensor mirror(const Tensor& tensor) {
    // Python kernels receive a wrapped number as a Python number, read from the host tensor.
    if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
    auto& storage = storages[tensor.storage().unsafeGetStorageImpl()];
    if (!storage) {
      const auto nbytes = static_cast<int64_t>(tensor.storage().nbytes());
      storage = c10::Storage(c10::Storage::use_byte_size_t(), nbytes, c10::GetAllocator(c10::kMeta), true);
    }
    const c10::DispatchKeySet keys(c10::DispatchKey::Meta);
    auto result = at::detail::make_tensor<at::TensorImpl>(c10::Storage(storage), keys, tensor.dtype());
    result.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (tensor.is_conj()) result._set_conj(true);
    if (tensor.is_neg()) result._set_neg(true);
    return result;
  }

  IValue mirror(const IValue& value) {
    if (value.isTensor()) return mirror(value.toTensor());
    if (value.isDevice() && value.toDevice().type() == kTpu) return c10::Device(c10::kMeta);
    if (value.isGenerator()) return {};
    if (!value.isTensorList() && !value.isOptionalTensorList()) return value;
    auto list = value.toList().copy();
    for (size_t i = 0; i < list.size(); ++i) list.set(i, mirror(list.get(i)));
    return list;
  }

  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages;
};

// A failed assertion is a limit of the Meta kernel: no operator reports its arguments this way on the CPU.
bool is_missing_meta(PyObject* type) {
  const char* name = type ? reinterpret_cast<PyTypeObject*>(type)->tp_name : "";
  constexpr std::array kMissing = {"NotImplementedError", "AssertionError", "DataDependent", "DynamicOutputShape"};
  return std::any_of(kMissing.begin(), kMissing.end(), [&](const char* text) { return std::strstr(name, text); });
}

struct MetaRun {
  torch::jit::Stack arguments;  // those that the operator writes carry their new metadata
  torch::jit::Stack results;
  std::optional<std::string> missing;  // the operator has no Meta kernel, or its sizes depend on values
};

// Runs f. Errors that are the caller's pass through; those that only say that Meta cannot answer become `missing`.
template <class F>
void attempt(MetaRun& run, F&& f) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  try {
    f();
  } catch (const c10::NotImplementedError& e) {
    // Structured kernels have shapes; what they refuse, subtracting bools for one, is the caller's mistake.
    run.missing = e.what_without_backtrace();
    const auto says = [&](const char* text) { return run.missing->find(text) != std::string::npos; };
    if (shape_only && !says("depends on values") && !says("Could not run")) throw;
  } catch (const c10::Error& e) {
    run.missing = e.what_without_backtrace();
    if (run.missing->find("meta tensor") == std::string::npos) throw;
  } catch (python_error& e) {
    e.persist();
    run.missing = e.message;
    if (!is_missing_meta(e.type) && run.missing->find("meta tensor") == std::string::npos) throw;
  } catch (const pybind11::error_already_set& e) {
    const pybind11::gil_scoped_acquire gil;
    run.missing = e.what();
    if (!is_missing_meta(e.type().ptr())) throw;
  }
}

MetaRun run_meta(const Operator& op, const c10::OperatorHandle& handle, c10::ArrayRef<IValue> arguments,
                 bool structured) {
  MetaRun run;
  MetaMirror mirror;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (&handle != &op.handle && op.arguments[i].is_out) continue;
    run.arguments.push_back(structured ? arguments[i] : mirror.mirror(arguments[i]));
  }
  run.results = run.arguments;
  shape_only = structured ? &handle : nullptr;
  struct Reset {
    ~Reset() { shape_only = nullptr; }
  } reset;
  const c10::DispatchKeySet keys(structured ? kUnusedKey : c10::DispatchKey::Meta);
  attempt(run, [&] { handle.redispatchBoxed(keys, &run.results); });
  return run;
}

// `handle` is the operator or its functional form, which takes the same arguments without the out ones.
MetaRun run_meta(const Operator& op, const c10::OperatorHandle& handle, c10::ArrayRef<IValue> arguments) {
  // Structured operators compute shapes in C++, as on the CPU; their Meta kernels are Python: 50 times slower, with
  // other error texts, and 900 modules to import. The kernel that makes them structured serves every backend without
  // one of its own, so a key that no backend uses reaches it with our own tensors.
  if (handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
      !handle.hasKernelForDispatchKey(kUnusedKey)) {
    MetaRun run = run_meta(op, handle, arguments, true);
    if (!run.missing) return run;
    // A composite under the same key that computes instead (select_backward): Meta knows it.
  }
  return run_meta(op, handle, arguments, false);
}

using Metas = c10::SmallVector<TpuMeta, 8>;

void append_metas(const IValue& value, Metas& metas) {
  const auto no_sizes = [&](int8_t dtype) { metas.push_back({nullptr, nullptr, 0, dtype}); };
  if (value.isList()) {
    for (const auto& element : value.toListRef()) append_metas(element, metas);
  } else if (!value.isTensor()) {
    no_sizes(static_cast<int8_t>(value.isBool() ? at::kBool : value.isInt() ? at::kLong : at::kDouble));
  } else if (const auto& tensor = value.toTensor(); tensor.defined()) {
    metas.push_back({tensor.sizes().data(), tensor.strides().data(), static_cast<int32_t>(tensor.dim()),
                     static_cast<int8_t>(tensor.scalar_type())});
  } else {
    no_sizes(-1);
  }
}

// TensorIterator's checks on written operands, which the Python Meta kernels of out= forms leave out.
void check_written(const Operator& op, c10::ArrayRef<IValue> arguments, const torch::jit::Stack& mirrored) {
  if (!op.handle.hasTag(at::Tag::pointwise)) return;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!op.arguments[i].is_out || !arguments[i].isTensor()) continue;
    const auto& written = arguments[i].toTensor();
    const auto& sizes = mirrored[i].toTensor().sizes();
    at::assert_no_internal_overlap(written);
    const auto check_read = [&](const Tensor& read) {
      at::assert_no_partial_overlap(written, read);
      TORCH_CHECK(!read.is_same(written) || sizes == written.sizes(), "output with shape ", written.sizes(),
                  " doesn't match the broadcast shape ", sizes);
    };
    for (size_t j = 0; j < arguments.size(); ++j) {
      if (!op.arguments[j].mutated) for_each_tensor(arguments[j], check_read);
    }
  }
}

// Gives out= tensors their new sizes. Python's Meta kernels leave resized tensors row-major; they get the strides of a
// fresh result.
bool resize_written(c10::ArrayRef<Tensor> written, const Metas& mutated, const Metas& outputs) {
  bool resized = false;
  for (size_t i = 0; i < written.size(); ++i) {
    const auto sizes_of = [](const TpuMeta& meta) { return at::IntArrayRef(meta.sizes, meta.ndim); };
    const auto sizes = sizes_of(mutated[i]);
    if (written[i].device().type() != kTpu || written[i].sizes() == sizes) continue;
    const auto* like = &mutated[i];
    if (outputs.size() >= written.size()) {
      const auto& result = outputs[outputs.size() - written.size() + i];
      if (sizes_of(result) == sizes) like = &result;
    }
    const at::IntArrayRef strides(like->strides, sizes.size());
    resize_tensor(written[i].unsafeGetTensorImpl(), sizes, &strides);
    resized = true;
  }
  return resized;
}

}  // namespace

bool build_plan(const Operator& op, const TpuCall& call, c10::ArrayRef<IValue> arguments, TpuPlanInfo& info) {
  const at::ThreadLocalStateGuard fresh(fresh_state());
  const auto real = run_meta(op, op.handle, arguments);
  check_written(op, arguments, real.arguments);
  MetaRun functional;
  Metas outputs, mutated;
  if (!real.missing) {
    if (op.mutates && op.functional) functional = run_meta(op, *op.functional, arguments);
    const bool use_functional = op.mutates && op.functional && !functional.missing;
    const auto& results = use_functional ? functional.results : real.results;
    for (size_t i = 0; i < results.size(); ++i) {
      if (use_functional || op.returns[i].kind != Return::kArgument) append_metas(results[i], outputs);
    }
    c10::SmallVector<Tensor, 4> written;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!op.arguments[i].mutated) continue;
      for_each_tensor(arguments[i], [&](const Tensor& tensor) { written.push_back(tensor); });
      for_each_tensor(real.arguments[i], [&](const Tensor& tensor) { append_metas(tensor, mutated); });
    }
    if (resize_written(written, mutated, outputs)) return false;
  }
  const TpuMetaResult result = {static_cast<uint32_t>(outputs.size()), outputs.data(),
                                static_cast<uint32_t>(mutated.size()), mutated.data(),
                                real.missing ? real.missing->c_str() : nullptr};
  check(core->build(&call, &result, &info));
  return true;
}

}  // namespace tpu
