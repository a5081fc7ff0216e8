// Plan misses: PyTorch's own kernels say, from metadata alone, what the outputs look like or what is wrong with the
// call.
#include <ATen/ThreadLocalState.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/Exceptions.h>

#include <thread>
#include <unordered_map>

#include "operators.h"

namespace tpu {

thread_local const c10::OperatorHandle* shape_only = nullptr;

namespace {

using at::Tensor;
using c10::ArrayRef, c10::IValue, c10::OperatorHandle;

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

const char* name_of(PyObject* type) { return type ? reinterpret_cast<PyTypeObject*>(type)->tp_name : ""; }

struct MetaRun {
  torch::jit::Stack arguments;  // those that the operator writes carry their new metadata
  torch::jit::Stack results;
  std::optional<std::string> missing;  // the operator has no Meta kernel, or its sizes depend on values
};

// Runs f. Errors that are the caller's pass through; those that only say that Meta cannot answer become `missing`.
template <class F>
void attempt(MetaRun& run, const abi::Call& call, F&& f) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto is_limit = [&](const char* kind, const char* message) {
    run.missing = message;
    const auto status = core->meta_failed(&call, kind, message, shape_only != nullptr);
    return status != abi::Status::Miss && (check(status), true);
  };
  try {
    f();
  } catch (const c10::Error& e) {
    if (!is_limit(typeid(e).name(), e.what_without_backtrace())) throw;
  } catch (python_error& e) {
    e.persist();
    if (!is_limit(name_of(e.type), e.message.c_str())) throw;
  } catch (const pybind11::error_already_set& e) {
    const pybind11::gil_scoped_acquire gil;
    if (!is_limit(name_of(e.type().ptr()), e.what())) throw;
  }
}

MetaRun run_meta(const Operator& op, const OperatorHandle& handle, const abi::Call& call, ArrayRef<IValue> arguments,
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
  attempt(run, call, [&] { handle.redispatchBoxed(keys, &run.results); });
  return run;
}

// `handle` is the operator or its functional form, which takes the same arguments without the out ones.
MetaRun run_meta(const Operator& op, const OperatorHandle& handle, const abi::Call& call, ArrayRef<IValue> arguments) {
  // Structured operators compute shapes in C++, as on the CPU; their Meta kernels are Python: 50 times slower, with
  // other error texts, and 900 modules to import. A key that no backend uses reaches it with our own tensors.
  if (is_structured(handle)) {
    MetaRun run = run_meta(op, handle, call, arguments, true);
    if (!run.missing) return run;
    // A composite under the same key that computes instead (select_backward): Meta knows it.
  }
  return run_meta(op, handle, call, arguments, false);
}

using Metas = c10::SmallVector<abi::Meta, 8>;

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

}  // namespace

bool build_plan(const Operator& op, const abi::Call& call, ArrayRef<IValue> arguments, abi::PlanInfo& info) {
  const at::ThreadLocalStateGuard fresh(fresh_state());
  const auto real = run_meta(op, op.handle, call, arguments);
  MetaRun functional;
  Metas outputs, mutated;
  c10::SmallVector<Tensor, 4> written;
  if (!real.missing) {
    if (op.functional_form) functional = run_meta(op, *op.functional_form, call, arguments);
    const bool use_functional = op.functional_form && !functional.missing;
    const auto& results = use_functional ? functional.results : real.results;
    for (size_t i = 0; i < results.size(); ++i) {
      if (use_functional || op.returns[i].kind != abi::ReturnKind::Argument) append_metas(results[i], outputs);
    }
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!op.arguments[i].is_written) continue;
      for_each_tensor(arguments[i], [&](const Tensor& tensor) { written.push_back(tensor); });
      for_each_tensor(real.arguments[i], [&](const Tensor& tensor) { append_metas(tensor, mutated); });
    }
    if (!use_functional) outputs.append(mutated.begin(), mutated.end());
  }
  const abi::MetaResult result = {static_cast<uint32_t>(outputs.size()), outputs.data(),
                                  static_cast<uint32_t>(mutated.size()), mutated.data(),
                                  real.missing ? real.missing->c_str() : nullptr};
  check(core->build(&call, &result, &info));
  for (size_t i = 0; info.resized && i < written.size(); ++i) {
    const auto& meta = info.outs[i];
    const at::IntArrayRef sizes(meta.sizes, meta.ndim), strides(meta.strides, meta.ndim);
    resize_tensor(written[i].unsafeGetTensorImpl(), sizes, &strides);
  }
  return !info.resized;
}

}  // namespace tpu
