// Plan misses: PyTorch's Meta kernels say what the outputs look like, or what is wrong with the call.
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Exceptions.h>

#include <cstring>

#include "operators.h"

namespace tpu {

thread_local const c10::OperatorHandle* shape_only = nullptr;

namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

// The dispatcher's state as in a fresh thread without gradients, for the life of this object: neither Meta kernels nor
// the tracing of decompositions may run under the caller's modes, autocast, functorch levels or inference mode.
class FreshDispatchState {
 public:
  FreshDispatchState()
      : keys_(c10::impl::LocalDispatchKeySet(c10::impl::PODLocalDispatchKeySet{})),
        dispatch_modes_(c10::impl::TorchDispatchModeTLS::get_state()),
        function_modes_(at::impl::PythonTorchFunctionTLS::get_state()),
        autograd_(c10::AutogradState::get_tls_state()) {
    c10::impl::TorchDispatchModeTLS::set_state({});
    at::impl::PythonTorchFunctionTLS::set_state({});
    c10::AutogradState::set_tls_state(c10::AutogradState(false, false, false, true));
  }
  ~FreshDispatchState() {
    c10::AutogradState::set_tls_state(autograd_);
    at::impl::PythonTorchFunctionTLS::set_state(function_modes_);
    // Also includes or excludes the Python keys; keys_ then has the last word.
    c10::impl::TorchDispatchModeTLS::set_state(dispatch_modes_);
  }
  FreshDispatchState(const FreshDispatchState&) = delete;
  FreshDispatchState& operator=(const FreshDispatchState&) = delete;

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
  c10::impl::TorchDispatchModeTLS dispatch_modes_;
  at::impl::PythonTorchFunctionTLS function_modes_;
  c10::AutogradState autograd_;
};

// Mirrors device tensors on Meta. Tensors that share a storage share a Meta storage, so that PyTorch's own overlap
// checks fire.
class MetaMirror {
 public:
  // Host scalars stay on the host, as next to CUDA tensors, unless the operator's kernel insists on one device.
  explicit MetaMirror(bool keep_host_scalars) : keep_host_scalars_(keep_host_scalars) {}

  Tensor mirror(const Tensor& tensor) {
    if (!tensor.defined() || (keep_host_scalars_ && tensor.device().is_cpu() && tensor.dim() == 0)) return tensor;
    const auto* impl = tensor.unsafeGetTensorImpl();
    auto result = at::detail::make_tensor<at::TensorImpl>(mirror_storage(tensor),
                                                          c10::DispatchKeySet(c10::DispatchKey::Meta), tensor.dtype());
    auto* copy = result.unsafeGetTensorImpl();
    copy->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (tensor.is_conj()) copy->_set_conj(true);
    if (tensor.is_neg()) copy->_set_neg(true);
    if (impl->is_wrapped_number()) copy->set_wrapped_number(true);
    return result;
  }

  IValue mirror(const IValue& value) {
    if (value.isTensor()) return mirror(value.toTensor());
    if (value.isDevice()) return value.toDevice().type() == kTpu ? IValue(c10::Device(c10::kMeta)) : value;
    if (value.isGenerator()) return {};
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const auto& element : value.toListRef()) list.push_back(mirror(element.toTensor()));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const auto& element : value.toListRef()) {
        list.push_back(element.isNone() ? std::nullopt : std::make_optional(mirror(element.toTensor())));
      }
      return list;
    }
    return value;
  }

 private:
  c10::Storage mirror_storage(const Tensor& tensor) {
    const auto* original = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    for (const auto& [known, storage] : storages_) {
      if (known == original) return storage;
    }
    c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(original->nbytes()),
                         c10::GetAllocator(c10::kMeta), true);
    storages_.emplace_back(original, storage);
    return storage;
  }

  bool keep_host_scalars_;
  c10::SmallVector<std::pair<const c10::StorageImpl*, c10::Storage>, 8> storages_;
};

// Why a Meta run gave no answer.
struct Failure {
  std::string message;
  bool no_meta = false;  // the operator has no Meta kernel, or its sizes depend on values: not the caller's mistake
  std::exception_ptr exception;
};

bool names_missing_meta(const std::string& message) {
  return message.find("meta tensor") != std::string::npos || message.find("Meta tensor") != std::string::npos;
}

bool is_missing_meta(PyObject* type) {
  if (!type) return false;
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_GivenExceptionMatches(type, PyExc_NotImplementedError)) return true;
  // A failed assertion is a limit of the Meta kernel: no operator reports its arguments this way on the CPU.
  if (PyErr_GivenExceptionMatches(type, PyExc_AssertionError)) return true;
  const char* name = reinterpret_cast<PyTypeObject*>(type)->tp_name;
  return std::strstr(name, "DataDependent") || std::strstr(name, "DynamicOutputShape");
}

Failure current_failure() {
  Failure failure;
  failure.exception = std::current_exception();
  try {
    throw;
  } catch (const c10::NotImplementedError& e) {
    failure = {e.what_without_backtrace(), true, failure.exception};
  } catch (const c10::Error& e) {
    failure.message = e.what_without_backtrace();
  } catch (python_error& e) {
    e.persist();
    failure.message = e.what();
    failure.no_meta = is_missing_meta(e.type);
  } catch (const pybind11::error_already_set& e) {
    const pybind11::gil_scoped_acquire gil;
    failure.message = e.what();
    failure.no_meta = is_missing_meta(e.type().ptr());
  } catch (const std::exception& e) {
    failure.message = e.what();
  }
  failure.no_meta = failure.no_meta || names_missing_meta(failure.message);
  return failure;
}

struct MetaRun {
  Stack arguments;  // mirrored; those that the operator writes carry their new metadata
  Stack results;
  std::optional<Failure> failure;
};

void run_mirrored(const c10::OperatorHandle& handle, c10::ArrayRef<IValue> arguments, bool keep_host_scalars,
                  MetaRun& run) {
  MetaMirror mirror(keep_host_scalars);
  run = {};
  for (const auto& argument : arguments) run.arguments.push_back(mirror.mirror(argument));
  run.results = run.arguments;
  try {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &run.results);
  } catch (...) {
    run.failure = current_failure();
  }
}

// Structured operators compute shapes in C++, as on the CPU; their Meta kernels are Python, 50 times slower, and load 900
// modules on first use. The kernel that makes them structured serves every backend without one of its own: a key that
// no backend uses reaches it with our own tensors.
constexpr auto kStructuredKey = c10::DispatchKey::IPU;

bool is_structured(const c10::OperatorHandle& handle) {
  return handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
         !handle.hasKernelForDispatchKey(kStructuredKey);
}

void run_structured(const c10::OperatorHandle& handle, MetaRun& run) {
  run.results = run.arguments;
  shape_only = &handle;
  try {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    handle.redispatchBoxed(c10::DispatchKeySet(kStructuredKey), &run.results);
  } catch (...) {
    run.failure = current_failure();
  }
  shape_only = nullptr;
}

bool has_host_scalar(c10::ArrayRef<IValue> arguments) {
  bool found = false;
  for (const auto& argument : arguments) {
    for_each_tensor(argument, [&](const Tensor& t) { found = found || (t.device().is_cpu() && t.dim() == 0); });
  }
  return found;
}

// `handle` is the operator or its functional form, which takes the same arguments without the out ones.
MetaRun run_meta(const Operator& op, const c10::OperatorHandle& handle, c10::ArrayRef<IValue> arguments) {
  MetaRun run;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (&handle == &op.handle || !op.arguments[i].is_out) run.arguments.push_back(arguments[i]);
  }
  if (is_structured(handle)) {
    run_structured(handle, run);
    return run;
  }
  const auto originals = run.arguments;
  run_mirrored(handle, originals, true, run);
  if (run.failure && run.failure->message.find("device") != std::string::npos && has_host_scalar(originals)) {
    run_mirrored(handle, originals, false, run);
  }
  return run;
}

TpuMeta describe_meta(const Tensor& tensor) {
  if (!tensor.defined()) return {nullptr, nullptr, 0, -1};
  return {tensor.sizes().data(), tensor.strides().data(), static_cast<int32_t>(tensor.dim()),
          static_cast<int8_t>(tensor.scalar_type())};
}

using Metas = c10::SmallVector<TpuMeta, 8>;

void append_metas(const IValue& value, Metas& metas) {
  const auto scalar = [&](at::ScalarType dtype) { metas.push_back({nullptr, nullptr, 0, static_cast<int8_t>(dtype)}); };
  if (value.isTensor()) {
    metas.push_back(describe_meta(value.toTensor()));
  } else if (value.isList()) {
    for (const auto& element : value.toListRef()) append_metas(element, metas);
  } else if (value.isBool()) {
    scalar(at::kBool);
  } else if (value.isInt()) {
    scalar(at::kLong);
  } else if (value.isDouble()) {
    scalar(at::kDouble);
  }
}

// One device, apart from host scalars that are only read.
void check_devices(const Operator& op, const TpuCall& call, c10::ArrayRef<IValue> arguments) {
  const auto ours = c10::Device(kTpu, static_cast<c10::DeviceIndex>(call.device));
  for (size_t i = 0; i < arguments.size(); ++i) {
    for_each_tensor(arguments[i], [&](const Tensor& tensor) {
      const auto device = tensor.device();
      const bool host_scalar = device.is_cpu() && tensor.dim() == 0 && !op.arguments[i].mutated;
      TORCH_CHECK(device == ours || host_scalar,
                  "Expected all tensors to be on the same device, but found at least two devices, ", ours, " and ",
                  device, "! (when checking argument ", op.handle.schema().arguments()[i].name(), " of ",
                  op.handle.operator_name(), ")");
    });
  }
}

}  // namespace

void build_plan(const Operator& op, const TpuCall& call, c10::ArrayRef<IValue> arguments, TpuPlanInfo& info) {
  check_devices(op, call, arguments);
  const FreshDispatchState fresh;
  auto real = run_meta(op, op.handle, arguments);
  if (real.failure && !real.failure->no_meta) std::rethrow_exception(real.failure->exception);

  TpuMetaResult result{};
  MetaRun functional;
  Metas outputs;
  Metas mutated;
  c10::SmallVector<uint32_t, 8> slots;
  if (real.failure) {
    result.error = real.failure->message.c_str();
  } else {
    uint32_t slot = 0;
    for (size_t i = 0; i < arguments.size(); ++i) {
      for_each_tensor(real.arguments[i], [&](const Tensor& tensor) {
        if (op.arguments[i].mutated) {
          slots.push_back(slot);
          mutated.push_back(describe_meta(tensor));
        }
        ++slot;
      });
    }
    if (op.mutates && op.functional) functional = run_meta(op, *op.functional, arguments);
    if (op.mutates && op.functional && !functional.failure) {
      for (const auto& value : functional.results) append_metas(value, outputs);
    } else {
      for (size_t i = 0; i < real.results.size(); ++i) {
        if (op.returns[i].kind != Return::kArgument) append_metas(real.results[i], outputs);
      }
    }
  }
  result.nfunctional = static_cast<uint32_t>(outputs.size());
  result.functional = outputs.data();
  result.nmutated = static_cast<uint32_t>(mutated.size());
  result.mutated_slots = slots.data();
  result.mutated = mutated.data();
  check(core->build(&call, &result, &info));
}

}  // namespace tpu
