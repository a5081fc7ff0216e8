// The boxed kernel: arguments to C structs, plan, outputs, execution, results.
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/IndexingUtils.h>

#include <algorithm>

#include "operators.h"

namespace tpu {
namespace {

using at::Tensor;
using c10::DispatchKey, c10::IValue;
using torch::jit::Stack;
using Outputs = c10::SmallVector<Tensor, 4>;

constexpr int32_t kNoDevice = -1;

// A call's arguments as the core sees them. Borrows from the stack; small calls allocate nothing.
class Call {
 public:
  Call(const Operator& op, c10::ArrayRef<IValue> arguments) {
    const auto& context = at::globalContext();
    auto* values = take<abi::Value>(arguments.size());
    const auto precision = op.pointwise ? 0u : static_cast<uint32_t>(context.float32MatmulPrecision());
    const auto modes = precision | (context.deterministicAlgorithms() ? 4u : 0u) |
                       static_cast<uint32_t>(c10::get_default_dtype_as_scalartype()) << 8;
    c = {op.id, static_cast<uint32_t>(arguments.size()), values, modes, kNoDevice};
    for (size_t i = 0; i < arguments.size(); ++i) convert(arguments[i], op.arguments[i], values[i]);
    if (C10_UNLIKELY(c.device == kNoDevice)) c.device = core->current_device();
  }
  abi::Call c;

 private:
  template <class T>
  T* take(size_t count) {
    const size_t bytes = (count * sizeof(T) + 15) / 16 * 16;
    if (C10_UNLIKELY(bytes > sizeof(inline_) - used_))
      return reinterpret_cast<T*>(overflow_.emplace_back(new char[bytes]).get());
    used_ += bytes;
    return reinterpret_cast<T*>(inline_ + used_ - bytes);
  }

  template <class T, class F>
  void list(const IValue& value, abi::Tag tag, abi::Value& out, F&& element) {
    const auto elements = value.toListRef();
    auto* data = take<T>(elements.size());
    for (size_t i = 0; i < elements.size(); ++i) element(elements[i], data[i]);
    out.tag = tag, out.u.list = {data, elements.size()};
  }

  void convert(const IValue& value, const abi::Argument& argument, abi::Value& out) {
    out.is_scalar = argument.is_scalar;
    if (value.isTensor() && value.toTensor().defined()) {
      out.tag = abi::Tag::Tensor;
      out.u.tensor = describe(value.toTensor());
      if (c.device == kNoDevice && out.u.tensor.storage) c.device = out.u.tensor.device_index;
    } else if (value.isInt() || value.isSymInt()) {
      out.tag = abi::Tag::Int, out.u.i = value.toInt();
    } else if (value.isDouble() || value.isSymFloat()) {
      out.tag = abi::Tag::Double, out.u.d = value.toDouble();
    } else if (value.isBool() || value.isSymBool()) {
      out.tag = abi::Tag::Bool, out.u.i = value.toBool();
    } else if (value.isIntList() || value.isSymIntList()) {
      list<int64_t>(value, abi::Tag::IntList, out, [](const IValue& v, int64_t& element) { element = v.toInt(); });
    } else if (value.isDoubleList()) {
      list<double>(value, abi::Tag::DoubleList, out, [](const IValue& v, double& element) { element = v.toDouble(); });
    } else if (value.isBoolList()) {
      list<uint8_t>(value, abi::Tag::BoolList, out, [](const IValue& v, uint8_t& element) { element = v.toBool(); });
    } else if (value.isList()) {
      list<abi::Value>(value, abi::Tag::ValueList, out,
                       [&](const IValue& v, abi::Value& e) { convert(v, argument, e); });
    } else if (value.isComplexDouble()) {
      const auto number = value.toComplexDouble();
      out.tag = abi::Tag::Complex, out.u.c[0] = number.real(), out.u.c[1] = number.imag();
    } else if (value.isString()) {
      out.tag = abi::Tag::String, out.u.string = value.toStringRef().c_str();
    } else if (value.isDevice()) {
      const auto device = value.toDevice();
      out.tag = abi::Tag::Device;
      out.u.i = static_cast<int64_t>(device.type()) << 32 | static_cast<uint8_t>(device.index());
      if (c.device == kNoDevice && device.type() == kTpu) c.device = device_index(device);
    } else if (value.isGenerator()) {
      const auto& generator = value.toGenerator();
      TORCH_CHECK(generator.device().type() == kTpu, "Expected a 'tpu' device type for generator but found '",
                  generator.device().type(), "'");
      out.tag = abi::Tag::Generator, out.u.generator = generator_number(generator);
    } else {
      out.tag = value.isNone() || value.isTensor() ? abi::Tag::None : abi::Tag::Other;
    }
  }

  alignas(16) char inline_[3072];
  size_t used_ = 0;
  c10::SmallVector<std::unique_ptr<char[]>, 1> overflow_;
};

// Indices as ATen's kernels want them: masks become positions, and host tensors move to the device.
void expand_indices(const Operator& op, Stack& stack) {
  const auto unfit = [](const std::optional<Tensor>& index) {
    return index && index->defined() &&
           (index->is_cpu() || index->scalar_type() == at::kBool || index->scalar_type() == at::kByte);
  };
  const auto first = stack.end() - static_cast<std::ptrdiff_t>(op.nargs);
  for (auto argument = first; argument != stack.end(); ++argument) {
    if (!argument->isOptionalTensorList()) continue;
    const auto indices = argument->toOptionalTensorList();
    if (std::none_of(indices.begin(), indices.end(), unfit)) continue;
    const auto expanded = at::native::expandTensors(first->toTensor(), indices, /*ensure_same_device=*/true);
    *argument = std::vector<std::optional<Tensor>>(expanded.begin(), expanded.end());
  }
}

void host_fallback(const Operator& op, Stack& stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(op.handle.hasComputedKernelForDispatchKey(DispatchKey::CPU), "tpu: '",
                              op.handle.operator_name(), "' is not implemented: no lowering, no decomposition, and no ",
                              "CPU kernel to fall back to");
  at::native::cpu_fallback(op.handle, &stack, /*error_on_views=*/true);
}

void by_position(const Operator& op, Stack& stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(op.handle.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd), "tpu: '",
                              op.handle.operator_name(), "' cannot take lists that overlap or span devices");
  op.handle.redispatchBoxed(c10::DispatchKeySet(kUnusedKey), &stack);
}

// Dimensions beyond the one that is cut lie as far apart as it is long.
void cut_to_extent(Outputs& outputs, const int8_t* extents) {
  const auto extent = outputs.back().item<int64_t>();
  outputs.pop_back();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (extents[i] < 0) continue;
    auto sizes = outputs[i].sizes().vec(), strides = outputs[i].strides().vec();
    const auto largest = std::max<int64_t>(std::exchange(sizes[extents[i]], extent), 1), step = strides[extents[i]];
    for (auto& stride : strides)
      if (stride > step) stride = stride / largest * std::max<int64_t>(extent, 1);
    outputs[i].unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    outputs[i].storage().set_nbytes(outputs[i].nbytes());
  }
}

Outputs execute(const abi::Call& call, const abi::PlanInfo& info) {
  Outputs outputs;
  c10::SmallVector<abi::Tensor, 4> descriptions;
  for (const auto& meta : c10::ArrayRef(info.outs, info.nouts)) {
    const auto rank = static_cast<size_t>(meta.ndim);
    const auto dtype = static_cast<at::ScalarType>(meta.dtype);
    const bool defined = C10_LIKELY(meta.dtype >= 0);
    outputs.push_back(defined ? new_tensor({meta.sizes, rank}, {meta.strides, rank}, dtype, call.device) : Tensor());
    descriptions.push_back(defined ? describe(outputs.back()) : abi::Tensor{});
  }
  check(core->execute(&call, descriptions.data(), info.nouts));
  if (C10_UNLIKELY(info.extents != nullptr)) cut_to_extent(outputs, info.extents);
  return outputs;
}

void push_results(const Operator& op, Outputs& outputs, Stack& stack) {
  const size_t nargs = op.nargs;
  TORCH_INTERNAL_ASSERT(outputs.size() >= op.single_outputs, "tpu: the plan of '", op.handle.operator_name(),
                        "' gives ", outputs.size(), " outputs");
  c10::SmallVector<IValue, 4> results;
  auto* next = outputs.begin();
  for (const auto& value : c10::ArrayRef(op.returns, op.nreturns)) {
    switch (value.kind) {
      case abi::ReturnKind::Argument: results.push_back(torch::jit::peek(stack, value.argument, nargs)); break;
      case abi::ReturnKind::Tensor: results.emplace_back(std::move(*next++)); break;
      case abi::ReturnKind::Number: results.emplace_back((next++)->item()); break;
      case abi::ReturnKind::TensorList: {
        c10::List<Tensor> list;
        for (size_t n = outputs.size() - op.single_outputs; n > 0; --n) list.push_back(std::move(*next++));
        results.emplace_back(std::move(list));
      }
    }
  }
  torch::jit::drop(stack, nargs);
  for (auto& result : results) stack.push_back(std::move(result));
}

// A structured kernel computes shapes, makes the outputs, and calls the out= form: there it is stopped. Any other
// operator it calls means that it looks at values.
void stop_at_out(const Operator& op, Stack& stack) {
  const auto &asked = shape_only->schema().name(), &name = op.handle.schema().name();
  TORCH_CHECK_NOT_IMPLEMENTED(op.writes && (asked == name || asked == name + "_"), "the shape of the output of '",
                              shape_only->operator_name(), "' depends on values");
  Outputs none;
  push_results(op, none, stack);
}

void run(const Operator& op, Stack& stack, bool resized = false) {
  if (C10_UNLIKELY(shape_only != nullptr)) return stop_at_out(op, stack);
  if (C10_UNLIKELY(op.has_indices)) expand_indices(op, stack);
  const auto arguments = torch::jit::last(stack, op.nargs);
  Outputs outputs;
  {
    const Call call(op, arguments);
    abi::PlanInfo info{};
    const auto status = core->plan(&call.c, &info);
    if (C10_UNLIKELY(status == abi::Status::Miss)) {
      if (!build_plan(op, call.c, arguments, info)) {
        // One tensor given for two results would change its size for ever.
        TORCH_CHECK(!resized, "tpu: '", op.handle.operator_name(), "' cannot write results of two sizes to one tensor");
        return run(op, stack, true);
      }
    } else {
      check(status);
    }
    if (C10_UNLIKELY(info.host_fallback)) return host_fallback(op, stack);
    if (C10_UNLIKELY(info.by_position)) return by_position(op, stack);
    outputs = execute(call.c, info);
  }
  push_results(op, outputs, stack);
}

void kernel(const c10::OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) { run(operator_for(handle), *stack); }

// An override of a CompositeImplicit operator would lose its autograd formula.
bool loses_autograd(const c10::OperatorHandle& handle) {
  return handle.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}

void register_kernel(const c10::OperatorHandle& handle) {
  static auto& kept = *new std::vector<c10::RegistrationHandleRAII>;
  if (handle.hasKernelForDispatchKey(DispatchKey::PrivateUse1)) return;
  kept.push_back(c10::Dispatcher::singleton().registerImpl(handle.operator_name(), DispatchKey::PrivateUse1,
                                                           c10::KernelFunction::makeFromBoxedFunction<&kernel>(),
                                                           std::nullopt, nullptr, "csrc/dispatch.cpp"));
}

}  // namespace

void register_dispatch() {
  keep_library("_", DispatchKey::PrivateUse1).fallback(torch::CppFunction::makeFromBoxedFunction<&kernel>());
  declare_operators("aten");
  for (const char* const* name = core->with_own_kernel(); *name; ++name) {
    const auto handle = find_operator(*name);
    if (handle && !loses_autograd(*handle)) register_kernel(*handle);
  }
}

}  // namespace tpu
