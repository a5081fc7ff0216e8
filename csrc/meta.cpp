// Plan misses: PyTorch's own kernels say, from metadata alone, what the outputs look like or what is wrong with the
// call.
#include <ATen/MemoryOverlap.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/Exceptions.h>

#include <cstring>
#include <thread>

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
    auto result = at::detail::make_tensor<at::TensorImpl>(mirror_storage(tensor),
                                                          c10::DispatchKeySet(c10::DispatchKey::Meta), tensor.dtype());
    auto* impl = result.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (tensor.is_conj()) impl->_set_conj(true);
    if (tensor.is_neg()) impl->_set_neg(true);
    return result;
  }

  IValue mirror(const IValue& value) {
    if (value.isTensor()) return mirror(value.toTensor());
    if (value.isDevice() && value.toDevice().type() == kTpu) return c10::Device(c10::kMeta);
    if (value.isGenerator()) return {};
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const auto& element : value.toListRef()) list.push_back(mirror(element.toTensor()));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const auto& element : value.toListRef())
        list.push_back(element.isNone() ? std::nullopt : std::optional(mirror(element.toTensor())));
      return list;
    }
    return value;
  }

  c10::Storage mirror_storage(const Tensor& tensor) {
    const auto* original = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    for (const auto& [known, storage] : storages) {
      if (known == original) return storage;
    }
    const auto nbytes = static_cast<int64_t>(original->nbytes());
    c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, c10::GetAllocator(c10::kMeta), true);
    return storages.emplace_back(original, std::move(storage)).second;
  }

  c10::SmallVector<std::pair<const c10::StorageImpl*, c10::Storage>, 8> storages;
};

bool is_missing_meta(PyObject* type) {
  const pybind11::gil_scoped_acquire gil;
  // A failed assertion is a limit of the Meta kernel: no operator reports its arguments this way on the CPU.
  for (auto* error : {PyExc_NotImplementedError, PyExc_AssertionError}) {
    if (type && PyErr_GivenExceptionMatches(type, error)) return true;
  }
  const char* name = type ? reinterpret_cast<PyTypeObject*>(type)->tp_name : "";
  return std::strstr(name, "DataDependent") || std::strstr(name, "DynamicOutputShape");
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
    const auto* what = e.what_without_backtrace();
    if (shape_only && !std::strstr(what, "depends on values") && !std::strstr(what, "Could not run")) throw;
    run.missing = what;
  } catch (const c10::Error& e) {
    if (!std::strstr(e.what_without_backtrace(), "meta tensor")) throw;
    run.missing = e.what_without_backtrace();
  } catch (python_error& e) {
    e.persist();
    if (!is_missing_meta(e.type) && e.message.find("meta tensor") == std::string::npos) throw;
    run.missing = e.message;
  } catch (const pybind11::error_already_set& e) {
    const pybind11::gil_scoped_acquire gil;
    if (!is_missing_meta(e.type().ptr())) throw;
    run.missing = e.what();
  }
}

// Structured operators compute shapes in C++, as on the CPU; their Meta kernels are Python: 50 times slower, with other
// error texts, and 900 modules to import. The kernel that makes them structured serves every backend without one of its
// own, so a key that no backend uses reaches it with our own tensors.
constexpr auto kStructuredKey = kUnusedKey;

bool is_structured(const c10::OperatorHandle& handle) {
  return handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
         !handle.hasKernelForDispatchKey(kStructuredKey);
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
  const c10::DispatchKeySet keys(structured ? kStructuredKey : c10::DispatchKey::Meta);
  attempt(run, [&] { handle.redispatchBoxed(keys, &run.results); });
  return run;
}

// `handle` is the operator or its functional form, which takes the same arguments without the out ones.
MetaRun run_meta(const Operator& op, const c10::OperatorHandle& handle, c10::ArrayRef<IValue> arguments) {
  if (is_structured(handle)) {
    MetaRun run = run_meta(op, handle, arguments, true);
    if (!run.missing) return run;
    // A composite under the same key that computes instead (select_backward): Meta knows it.
  }
  return run_meta(op, handle, arguments, false);
}

using Metas = c10::SmallVector<TpuMeta, 8>;

void append_metas(const IValue& value, Metas& metas) {
  const auto number = [&](at::ScalarType dtype) { metas.push_back({nullptr, nullptr, 0, static_cast<int8_t>(dtype)}); };
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    if (!tensor.defined()) return metas.push_back({nullptr, nullptr, 0, -1});
    metas.push_back({tensor.sizes().data(), tensor.strides().data(), static_cast<int32_t>(tensor.dim()),
                     static_cast<int8_t>(tensor.scalar_type())});
  } else if (value.isList()) {
    for (const auto& element : value.toListRef()) append_metas(element, metas);
  } else {
    number(value.isBool() ? at::kBool : value.isInt() ? at::kLong : at::kDouble);
  }
}

// TensorIterator's checks on written operands, which the Python Meta kernels of out= forms leave out.
void check_written(const Operator& op, c10::ArrayRef<IValue> arguments, const torch::jit::Stack& mirrored) {
  if (!op.mutates || !op.handle.hasTag(at::Tag::pointwise)) return;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!op.arguments[i].is_out || !arguments[i].isTensor()) continue;
    const auto& written = arguments[i].toTensor();
    at::assert_no_internal_overlap(written);
    for (size_t j = 0; j < arguments.size(); ++j) {
      if (op.arguments[j].mutated) continue;
      for_each_tensor(arguments[j], [&](const Tensor& read) {
        at::assert_no_partial_overlap(written, read);
        const auto& sizes = mirrored[i].toTensor().sizes();
        TORCH_CHECK(!read.is_same(written) || sizes == written.sizes(), "output with shape ", written.sizes(),
                    " doesn't match the broadcast shape ", sizes);
      });
    }
  }
}

}  // namespace

void build_plan(const Operator& op, const TpuCall& call, c10::ArrayRef<IValue> arguments, TpuPlanInfo& info) {
  const at::ThreadLocalStateGuard fresh(fresh_state());
  const auto real = run_meta(op, op.handle, arguments);
  check_written(op, arguments, real.arguments);
  const auto functional =
      op.mutates && op.functional && !real.missing ? run_meta(op, *op.functional, arguments) : MetaRun();
  Metas outputs, mutated;
  c10::SmallVector<uint32_t, 8> slots;
  if (!real.missing) {
    uint32_t slot = 0;
    for (size_t i = 0; i < arguments.size(); ++i) {
      for_each_tensor(real.arguments[i], [&](const Tensor& tensor) {
        if (op.arguments[i].mutated) slots.push_back(slot), append_metas(tensor, mutated);
        ++slot;
      });
    }
    const bool use_functional = op.mutates && op.functional && !functional.missing;
    const auto& results = use_functional ? functional.results : real.results;
    for (size_t i = 0; i < results.size(); ++i) {
      if (use_functional || op.returns[i].kind != Return::kArgument) append_metas(results[i], outputs);
    }
  }
  const TpuMetaResult result = {static_cast<uint32_t>(outputs.size()),
                                outputs.data(),
                                static_cast<uint32_t>(mutated.size()),
                                slots.data(),
                                mutated.data(),
                                real.missing ? real.missing->c_str() : nullptr};
  check(core->build(&call, &result, &info));
}

}  // namespace tpu
