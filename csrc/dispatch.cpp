// The boxed kernel: arguments to C structs, plan, outputs, execution, results.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/util/flat_hash_map.h>

#include <unordered_map>

#include "operators.h"

namespace tpu {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

constexpr int32_t kNoDevice = -1;

uint32_t global_modes() {
  const auto& context = at::globalContext();
  return static_cast<uint32_t>(context.float32MatmulPrecision()) | (context.deterministicAlgorithms() ? 4u : 0u) |
         static_cast<uint32_t>(c10::get_default_dtype_as_scalartype()) << 8;
}

}  // namespace

// Arguments ---------------------------------------------------------------------------------------------------------

template <class T>
T* Call::take(size_t count) {
  const size_t bytes = (count * sizeof(T) + 15) / 16 * 16;
  if (bytes <= sizeof(inline_) - used_) {
    auto* memory = inline_ + used_;
    used_ += bytes;
    return reinterpret_cast<T*>(memory);
  }
  overflow_.emplace_back(new char[bytes]);
  return reinterpret_cast<T*>(overflow_.back().get());
}

Call::Call(const Operator& op, c10::ArrayRef<IValue> arguments) {
  auto* values = take<TpuValue>(arguments.size());
  c.op = op.id;
  c.nargs = static_cast<uint32_t>(arguments.size());
  c.args = values;
  c.cxx = nullptr;
  c.modes = global_modes();
  c.device = kNoDevice;
  for (size_t i = 0; i < arguments.size(); ++i) convert(arguments[i], op.arguments[i], values[i]);
  if (C10_UNLIKELY(c.device == kNoDevice)) c.device = core->current_device();
}

void Call::convert(const IValue& value, const Argument& argument, TpuValue& out) {
  out.is_scalar = argument.is_scalar;
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    if (!tensor.defined()) {
      out.tag = TPU_NONE;
      return;
    }
    out.tag = TPU_TENSOR;
    describe(tensor, out.u.tensor);
    if (c.device == kNoDevice && out.u.tensor.storage) c.device = out.u.tensor.device_index;
  } else if (value.isInt()) {
    out.tag = TPU_INT;
    out.u.i = value.toInt();
  } else if (value.isNone()) {
    out.tag = TPU_NONE;
  } else if (value.isDouble()) {
    out.tag = TPU_DOUBLE;
    out.u.d = value.toDouble();
  } else if (value.isBool()) {
    out.tag = TPU_BOOL;
    out.u.i = value.toBool();
  } else if (value.isList()) {
    convert_list(value, argument, out);
  } else if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    out.tag = TPU_COMPLEX;
    out.u.c[0] = number.real();
    out.u.c[1] = number.imag();
  } else if (value.isString()) {
    out.tag = TPU_STRING;
    out.u.string = value.toStringRef().c_str();
  } else if (value.isDevice()) {
    const auto device = value.toDevice();
    out.tag = TPU_DEVICE;
    out.u.i = static_cast<int64_t>(device.type()) << 32 | static_cast<uint8_t>(device.index());
    if (c.device == kNoDevice && device.type() == kTpu) c.device = index_or_current(device);
  } else if (value.isGenerator()) {
    const auto& generator = value.toGenerator();
    TORCH_CHECK(generator.device().type() == kTpu, "Expected a 'tpu' device type for generator but found '",
                generator.device().type(), "'");
    out.tag = TPU_GENERATOR;
    out.u.generator = generator.unsafeGetGeneratorImpl();
  } else if (value.isSymInt()) {
    out.tag = TPU_INT;
    out.u.i = value.toSymInt().guard_int(__FILE__, __LINE__);
  } else if (value.isSymFloat()) {
    out.tag = TPU_DOUBLE;
    out.u.d = value.toSymFloat().guard_float(__FILE__, __LINE__);
  } else if (value.isSymBool()) {
    out.tag = TPU_BOOL;
    out.u.i = value.toSymBool().guard_bool(__FILE__, __LINE__);
  } else {
    out.tag = TPU_OTHER;
  }
}

void Call::convert_list(const IValue& value, const Argument& argument, TpuValue& out) {
  const auto list = value.toListRef();
  const size_t count = list.size();
  out.u.list.len = count;
  switch (argument.kind) {
    case Argument::kIntList: {
      auto* data = take<int64_t>(count);
      for (size_t i = 0; i < count; ++i) {
        data[i] = C10_LIKELY(list[i].isInt()) ? list[i].toInt() : list[i].toSymInt().guard_int(__FILE__, __LINE__);
      }
      out.tag = TPU_INT_LIST;
      out.u.list.data = data;
      break;
    }
    case Argument::kDoubleList: {
      auto* data = take<double>(count);
      for (size_t i = 0; i < count; ++i) data[i] = list[i].toDouble();
      out.tag = TPU_DOUBLE_LIST;
      out.u.list.data = data;
      break;
    }
    case Argument::kBoolList: {
      auto* data = take<uint8_t>(count);
      for (size_t i = 0; i < count; ++i) data[i] = list[i].toBool();
      out.tag = TPU_BOOL_LIST;
      out.u.list.data = data;
      break;
    }
    default: {
      auto* data = take<TpuValue>(count);
      for (size_t i = 0; i < count; ++i) convert(list[i], argument, data[i]);
      out.tag = TPU_VALUE_LIST;
      out.u.list.data = data;
    }
  }
}

namespace {

// Indices of a device tensor may be host tensors; a plan only knows indices on the device.
bool move_host_indices(const Operator& op, const TpuCall& call, Stack& stack) {
  bool moved = false;
  const size_t first = stack.size() - op.arguments.size();
  for (size_t i = 0; i < op.arguments.size(); ++i) {
    if (!op.arguments[i].is_index_list || !stack[first + i].isOptionalTensorList()) continue;
    c10::List<std::optional<Tensor>> indices;
    bool changed = false;
    for (const auto& element : stack[first + i].toListRef()) {
      std::optional<Tensor> index;
      if (!element.isNone()) index = element.toTensor();
      if (index && index->defined() && index->device().is_cpu()) {
        index = index->to(c10::Device(kTpu, static_cast<c10::DeviceIndex>(call.device)));
        changed = true;
      }
      indices.push_back(std::move(index));
    }
    if (changed) stack[first + i] = std::move(indices);
    moved = moved || changed;
  }
  return moved;
}

void host_fallback(const Operator& op, Stack& stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(op.handle.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), "tpu: '",
                              op.handle.operator_name(), "' is not implemented: no lowering, no decomposition, and no ",
                              "CPU kernel to fall back to");
  at::native::cpu_fallback(op.handle, &stack, /*error_on_views=*/true);
}

void resize_outs(const TpuPlanInfo& info, c10::ArrayRef<IValue> arguments, bool warn) {
  uint32_t slot = 0;
  for (const auto& argument : arguments) {
    for_each_tensor(argument, [&](const Tensor& tensor) {
      for (uint32_t i = 0; i < info.nresized; ++i) {
        if (info.resized_slots[i] != slot) continue;
        const auto& meta = info.resized[i];
        const at::IntArrayRef sizes(meta.sizes, static_cast<size_t>(meta.ndim));
        const at::IntArrayRef strides(meta.strides, static_cast<size_t>(meta.ndim));
        if (warn) at::native::resize_output_check(tensor, sizes);
        resize_tensor(tensor.unsafeGetTensorImpl(), sizes, &strides);
      }
      ++slot;
    });
  }
}

using Outputs = c10::SmallVector<Tensor, 4>;

void allocate_outputs(const TpuPlanInfo& info, int32_t device, Outputs& outputs,
                      c10::SmallVectorImpl<TpuTensor>& descriptions) {
  for (uint32_t i = 0; i < info.nouts; ++i) {
    const auto& meta = info.outs[i];
    TpuTensor out{};
    out.sizes = meta.sizes;
    out.strides = meta.strides;
    out.ndim = meta.ndim;
    out.dtype = meta.dtype;
    out.device_type = static_cast<int8_t>(kTpu);
    out.device_index = static_cast<int8_t>(device);
    if (C10_UNLIKELY(meta.dtype < 0)) {
      outputs.emplace_back();
    } else {
      const auto rank = static_cast<size_t>(meta.ndim);
      outputs.push_back(
          new_tensor({meta.sizes, rank}, {meta.strides, rank}, static_cast<at::ScalarType>(meta.dtype), device));
      out.storage = outputs.back().unsafeGetTensorImpl()->unsafe_storage().data_ptr().get_context();
    }
    descriptions.push_back(out);
  }
}

void execute_dynamic(const TpuCall& call, const TpuPlanInfo& info, Outputs& outputs) {
  TORCH_CHECK_NOT_IMPLEMENTED(core->execute_dynamic, "tpu: outputs of data-dependent size are not supported");
  c10::SmallVector<TpuDynamicOut, 4> made(info.nouts);
  check(core->execute_dynamic(&call, &info, made.data()));
  const auto device = c10::Device(kTpu, static_cast<c10::DeviceIndex>(call.device));
  for (const auto& out : made) {
    const auto rank = static_cast<size_t>(out.meta.ndim);
    outputs.push_back(wrap_storage({out.address, out.storage, core->storage_free, device}, out.nbytes,
                                   {out.meta.sizes, rank}, {out.meta.strides, rank},
                                   static_cast<at::ScalarType>(out.meta.dtype)));
  }
}

IValue read_number(const Tensor& output, Return::Kind kind) {
  const auto number = output.item();
  if (kind == Return::kBool) return number.toBool();
  if (kind == Return::kInt) return number.toLong();
  return number.toDouble();
}

void push_results(const Operator& op, Outputs& outputs, Stack& stack) {
  const size_t nargs = op.arguments.size();
  if (C10_LIKELY(op.returns.size() == 1)) {
    const auto& only = op.returns[0];
    if (C10_LIKELY(only.kind == Return::kTensor && outputs.size() == 1)) {
      torch::jit::drop(stack, nargs);
      stack.emplace_back(std::move(outputs[0]));
      return;
    }
  }
  c10::SmallVector<IValue, 4> results;
  TORCH_INTERNAL_ASSERT(outputs.size() >= op.fresh_scalars_and_tensors, "tpu: the plan of '", op.handle.operator_name(),
                        "' gives ", outputs.size(), " outputs");
  size_t next = 0;
  for (const auto& value : op.returns) {
    switch (value.kind) {
      case Return::kArgument:
        results.push_back(torch::jit::peek(stack, value.argument, nargs));
        break;
      case Return::kTensor:
        results.emplace_back(std::move(outputs[next++]));
        break;
      case Return::kTensorList: {
        c10::List<Tensor> list;
        for (size_t n = outputs.size() - op.fresh_scalars_and_tensors; n > 0; --n) {
          list.push_back(std::move(outputs[next++]));
        }
        results.emplace_back(std::move(list));
        break;
      }
      default:
        results.push_back(read_number(outputs[next++], value.kind));
    }
  }
  torch::jit::drop(stack, nargs);
  for (auto& result : results) stack.push_back(std::move(result));
}

// A structured kernel computes shapes, makes the outputs, and calls the out= form: there it is stopped. Any other
// operator it calls means that it looks at values.
void stop_at_out(const Operator& op, Stack& stack) {
  const auto& asked = shape_only->schema().name();
  const auto& name = op.handle.schema().name();
  TORCH_CHECK_NOT_IMPLEMENTED(op.mutates && (asked == name || asked == name + "_"), "the shape of the output of '",
                              shape_only->operator_name(), "' depends on values");
  Outputs none;
  push_results(op, none, stack);
}

void run(const Operator& op, Stack& stack) {
  if (C10_UNLIKELY(shape_only != nullptr)) return stop_at_out(op, stack);
  const auto arguments = torch::jit::last(stack, op.arguments.size());
  TpuPlanInfo info{};
  Outputs outputs;
  {
    Call call(op, arguments);
    const int32_t status = core->plan(&call.c, &info);
    const bool miss = status == TPU_MISS;
    if (C10_UNLIKELY(status != TPU_OK)) {
      if (!miss) throw_status(status);
      if (move_host_indices(op, call.c, stack)) return run(op, stack);
      build_plan(op, call.c, arguments, info);
    }
    if (C10_UNLIKELY(info.host_fallback)) return host_fallback(op, stack);
    const TpuCall* current = &call.c;
    std::optional<Call> resized;
    if (C10_UNLIKELY(info.nresized != 0)) {
      resize_outs(info, arguments, !miss);
      current = &resized.emplace(op, arguments).c;
    }
    if (C10_UNLIKELY(info.dynamic)) {
      execute_dynamic(*current, info, outputs);
    } else {
      c10::SmallVector<TpuTensor, 4> descriptions;
      allocate_outputs(info, call.c.device, outputs, descriptions);
      check(core->execute(current, &info, descriptions.data(), info.nouts));
    }
  }
  push_results(op, outputs, stack);
}

// Explicit kernels hold their operator; the fallback looks it up per thread.
struct Kernel final : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
    const auto* op = op_.load(std::memory_order_acquire);
    if (C10_UNLIKELY(!op)) {
      op = &operator_for(handle);
      op_.store(op, std::memory_order_release);
    }
    run(*op, *stack);
  }

 private:
  std::atomic<const Operator*> op_{nullptr};
};

void fallback(const c10::OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
  static thread_local ska::flat_hash_map<const void*, const Operator*> known;
  auto& op = known[&handle.operator_name()];
  if (C10_UNLIKELY(!op)) op = &operator_for(handle);
  run(*op, *stack);
}

// Registration ------------------------------------------------------------------------------------------------------

std::vector<const char*>& skipped() {
  static auto& names = *new std::vector<const char*>;
  return names;
}

bool loses_autograd(const c10::OperatorHandle& handle) {
  return handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

void register_explicit(const c10::OperatorHandle& handle) {
  static auto& libraries = *new std::unordered_map<std::string, torch::Library*>;
  if (handle.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) return;
  const auto& name = handle.operator_name().name;
  const auto ns = name.substr(0, name.find("::"));
  auto& library = libraries[ns];
  if (!library) library = &keep_library(ns.c_str(), c10::DispatchKey::PrivateUse1);
  library->impl(c10::toString(handle.operator_name()).c_str(),
                torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>()));
}

// The in-place and out= forms of a native operator: left to themselves, structured ones would run their shape checks in
// C++ on every call and arrive as .out.
void register_mutating_forms(const c10::OperatorHandle& handle) {
  const auto& name = handle.operator_name().name;
  for (const auto& base : {name, name + "_"}) {
    for (const auto& form : overloads_of(base)) {
      if (!form.schema().is_mutable() || loses_autograd(form)) continue;
      const auto functional = functional_form(form);
      if (functional && functional->operator_name() == handle.operator_name()) register_explicit(form);
    }
  }
}

}  // namespace

const char* const* skipped_ops() noexcept {
  return skipped().data();
}

void register_dispatch() {
  keep_library("_", c10::DispatchKey::PrivateUse1).fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  for (const char* const* name = core->native_ops(); *name; ++name) {
    const std::string full = *name;
    const auto dot = full.find('.');
    const c10::OperatorName operator_name(full.substr(0, dot),
                                          dot == std::string::npos ? std::string() : full.substr(dot + 1));
    const auto handle = c10::Dispatcher::singleton().findSchema(operator_name);
    if (!handle || loses_autograd(*handle)) {
      skipped().push_back(*name);
      continue;
    }
    register_explicit(*handle);
    if (!handle->schema().is_mutable()) register_mutating_forms(*handle);
  }
  skipped().push_back(nullptr);
}

}  // namespace tpu
