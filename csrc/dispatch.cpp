// The boxed kernel: arguments to C structs, plan, outputs, execution, results.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/native/Resize.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "operators.h"

namespace tpu {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;
using Arguments = c10::ArrayRef<IValue>;
using Outputs = c10::SmallVector<Tensor, 4>;

constexpr int32_t kNoDevice = -1;

// A call's arguments as the core sees them. Borrows from the stack; small calls allocate nothing.
class Call {
 public:
  Call(const Operator& op, Arguments arguments) {
    const auto& context = at::globalContext();
    auto* values = take<TpuValue>(arguments.size());
    const auto modes = static_cast<uint32_t>(context.float32MatmulPrecision()) |
                       (context.deterministicAlgorithms() ? 4u : 0u) |
                       static_cast<uint32_t>(c10::get_default_dtype_as_scalartype()) << 8;
    c = {op.id, static_cast<uint32_t>(arguments.size()), values, nullptr, modes, kNoDevice};
    for (size_t i = 0; i < arguments.size(); ++i) convert(arguments[i], op.arguments[i], values[i]);
    if (C10_UNLIKELY(c.device == kNoDevice)) c.device = core->current_device();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  TpuCall c;

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
  void list(const IValue& value, int32_t tag, TpuValue& out, F&& element) {
    const auto elements = value.toListRef();
    auto* data = take<T>(elements.size());
    for (size_t i = 0; i < elements.size(); ++i) element(elements[i], data[i]);
    out.tag = tag;
    out.u.list = {data, elements.size()};
  }

  void convert(const IValue& value, const Argument& argument, TpuValue& out) {
    out.is_scalar = argument.is_scalar;
    const auto integer = [&](int32_t tag, int64_t number) { out.tag = tag, out.u.i = number; };
    if (value.isTensor() && value.toTensor().defined()) {
      out.tag = TPU_TENSOR;
      out.u.tensor = describe(value.toTensor());
      if (c.device == kNoDevice && out.u.tensor.storage) c.device = out.u.tensor.device_index;
    } else if (value.isInt() || value.isSymInt()) {
      integer(TPU_INT, value.toInt());
    } else if (value.isNone() || value.isTensor()) {
      out.tag = TPU_NONE;
    } else if (value.isDouble() || value.isSymFloat()) {
      out.tag = TPU_DOUBLE, out.u.d = value.toDouble();
    } else if (value.isBool() || value.isSymBool()) {
      integer(TPU_BOOL, value.toBool());
    } else if (value.isList() && argument.kind == Argument::kIntList) {
      list<int64_t>(value, TPU_INT_LIST, out, [](const IValue& v, int64_t& element) { element = v.toInt(); });
    } else if (value.isList() && argument.kind == Argument::kDoubleList) {
      list<double>(value, TPU_DOUBLE_LIST, out, [](const IValue& v, double& element) { element = v.toDouble(); });
    } else if (value.isList() && argument.kind == Argument::kBoolList) {
      list<uint8_t>(value, TPU_BOOL_LIST, out, [](const IValue& v, uint8_t& element) { element = v.toBool(); });
    } else if (value.isList()) {
      list<TpuValue>(value, TPU_VALUE_LIST, out, [&](const IValue& v, TpuValue& e) { convert(v, argument, e); });
    } else if (value.isComplexDouble()) {
      const auto number = value.toComplexDouble();
      out.tag = TPU_COMPLEX, out.u.c[0] = number.real(), out.u.c[1] = number.imag();
    } else if (value.isString()) {
      out.tag = TPU_STRING, out.u.string = value.toStringRef().c_str();
    } else if (value.isDevice()) {
      const auto device = value.toDevice();
      integer(TPU_DEVICE, static_cast<int64_t>(device.type()) << 32 | static_cast<uint8_t>(device.index()));
      if (c.device == kNoDevice && device.type() == kTpu) c.device = device_index(device);
    } else if (value.isGenerator()) {
      const auto& generator = value.toGenerator();
      TORCH_CHECK(generator.device().type() == kTpu, "Expected a 'tpu' device type for generator but found '",
                  generator.device().type(), "'");
      out.tag = TPU_GENERATOR, out.u.generator = generator.unsafeGetGeneratorImpl();
    } else {
      out.tag = TPU_OTHER;
    }
  }

  alignas(16) char inline_[3072];
  size_t used_ = 0;
  c10::SmallVector<std::unique_ptr<char[]>, 1> overflow_;
};

// Indices as ATen's kernels want them: masks become positions, and host tensors move to the device.
void expand_indices(const Operator& op, Stack& stack) {
  const auto& self = torch::jit::peek(stack, 0, op.arguments.size());
  for (size_t i = 0; i < op.arguments.size(); ++i) {
    auto& argument = torch::jit::peek(stack, i, op.arguments.size());
    if (!op.arguments[i].is_index_list || !argument.isOptionalTensorList() || !self.isTensor()) continue;
    const auto indices = argument.toOptionalTensorList();
    bool plain = true;
    for (const std::optional<Tensor> index : indices) {
      plain = plain &&
              !(index && index->defined() &&
                (index->device().is_cpu() || index->scalar_type() == at::kBool || index->scalar_type() == at::kByte));
    }
    if (plain) continue;
    c10::List<std::optional<Tensor>> expanded;
    for (auto& index : at::native::expandTensors(self.toTensor(), indices, /*ensure_same_device=*/true)) {
      expanded.push_back(index.defined() ? std::optional(std::move(index)) : std::nullopt);
    }
    argument = std::move(expanded);
  }
}

void host_fallback(const Operator& op, Stack& stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(op.handle.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), "tpu: '",
                              op.handle.operator_name(), "' is not implemented: no lowering, no decomposition, and no ",
                              "CPU kernel to fall back to");
  at::native::cpu_fallback(op.handle, &stack, /*error_on_views=*/true);
}

void resize_outs(const TpuPlanInfo& info, Arguments arguments, bool warn) {
  uint32_t slot = 0;
  for (const auto& argument : arguments) {
    for_each_tensor(argument, [&](const Tensor& tensor) {
      for (uint32_t i = 0; i < info.nresized; ++i) {
        if (info.resized_slots[i] != slot) continue;
        const auto& meta = info.resized[i];
        const auto rank = static_cast<size_t>(meta.ndim);
        const at::IntArrayRef sizes(meta.sizes, rank), strides(meta.strides, rank);
        if (warn) at::native::resize_output_check(tensor, sizes);
        resize_tensor(tensor.unsafeGetTensorImpl(), sizes, &strides);
      }
      ++slot;
    });
  }
}

void execute(const TpuCall& call, const TpuPlanInfo& info, Outputs& outputs) {
  c10::SmallVector<TpuTensor, 4> descriptions;
  for (uint32_t i = 0; i < info.nouts; ++i) {
    const auto& meta = info.outs[i];
    const auto rank = static_cast<size_t>(meta.ndim);
    const auto dtype = static_cast<at::ScalarType>(meta.dtype);
    const bool defined = C10_LIKELY(meta.dtype >= 0);
    outputs.push_back(defined ? new_tensor({meta.sizes, rank}, {meta.strides, rank}, dtype, call.device) : Tensor());
    descriptions.push_back(defined ? describe(outputs.back()) : TpuTensor{});
  }
  check(core->execute(&call, &info, descriptions.data(), info.nouts));
}

void execute_dynamic(const TpuCall& call, const TpuPlanInfo& info, Outputs& outputs) {
  TORCH_CHECK_NOT_IMPLEMENTED(core->execute_dynamic, "tpu: outputs of data-dependent size are not supported");
  std::vector<TpuDynamicOut> made(info.nouts);
  check(core->execute_dynamic(&call, &info, made.data()));
  for (const auto& out : made) {
    const auto rank = static_cast<size_t>(out.meta.ndim);
    outputs.push_back(wrap_storage({out.address, out.storage, core->storage_free, device_at(call.device)}, out.nbytes,
                                   {out.meta.sizes, rank}, {out.meta.strides, rank},
                                   static_cast<at::ScalarType>(out.meta.dtype)));
  }
}

void push_results(const Operator& op, Outputs& outputs, Stack& stack) {
  const size_t nargs = op.arguments.size();
  TORCH_INTERNAL_ASSERT(outputs.size() >= op.single_outputs, "tpu: the plan of '", op.handle.operator_name(),
                        "' gives ", outputs.size(), " outputs");
  c10::SmallVector<IValue, 4> results;
  auto* next = outputs.begin();
  for (const auto& value : op.returns) {
    switch (value.kind) {
      case Return::kArgument: results.push_back(torch::jit::peek(stack, value.argument, nargs)); break;
      case Return::kTensor: results.emplace_back(std::move(*next++)); break;
      case Return::kNumber: results.emplace_back((next++)->item()); break;
      case Return::kTensorList: {
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
  TORCH_CHECK_NOT_IMPLEMENTED(op.mutates && (asked == name || asked == name + "_"), "the shape of the output of '",
                              shape_only->operator_name(), "' depends on values");
  Outputs none;
  push_results(op, none, stack);
}

// Whether a written list shares memory with what stands at another position of the call's lists: one program for the
// whole list would not see what earlier positions wrote.
bool positions_overlap(c10::ArrayRef<IValue> arguments, const Operator& op) {
  struct Span {
    const void* storage;
    int64_t begin, end;
    size_t position;
    bool written;
  };
  c10::SmallVector<Span, 32> spans;
  for (size_t i = 0; i < arguments.size(); ++i) {
    size_t position = arguments[i].isList() ? 0 : SIZE_MAX;
    for_each_tensor(arguments[i], [&](const Tensor& tensor) {
      const auto begin = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
      const auto bytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
      spans.push_back({tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(), begin,
                       begin + static_cast<int64_t>(bytes), position, op.arguments[i].mutated});
      position += arguments[i].isList();
    });
  }
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return std::tie(a.storage, a.begin) < std::tie(b.storage, b.begin); });
  // A group of spans that hang together.
  bool written = false, mixed = false;
  for (size_t i = 0, first = 0; i < spans.size(); ++i) {
    const bool joins = i != 0 && spans[i].storage == spans[first].storage && spans[i].begin < spans[first].end;
    if (joins) {
      spans[first].end = std::max(spans[first].end, spans[i].end);
    } else {
      first = i, written = mixed = false;
    }
    written = written || spans[i].written;
    mixed = mixed || spans[i].position != spans[first].position;
    if (written && mixed) return true;
  }
  return false;
}

void run(const Operator& op, Stack& stack) {
  if (C10_UNLIKELY(shape_only != nullptr)) return stop_at_out(op, stack);
  if (C10_UNLIKELY(op.writes_lists) && positions_overlap(torch::jit::last(stack, op.arguments.size()), op)) {
    return op.handle.redispatchBoxed(c10::DispatchKeySet(kUnusedKey), &stack);
  }
  if (C10_UNLIKELY(op.has_index_list)) expand_indices(op, stack);
  const auto arguments = torch::jit::last(stack, op.arguments.size());
  Outputs outputs;
  {
    const Call call(op, arguments);
    TpuPlanInfo info{};
    const int32_t status = core->plan(&call.c, &info);
    const bool miss = status == TPU_MISS;
    if (C10_UNLIKELY(miss)) {
      build_plan(op, call.c, arguments, info);
    } else {
      check(status);
    }
    if (C10_UNLIKELY(info.host_fallback)) return host_fallback(op, stack);
    if (C10_UNLIKELY(info.nresized != 0)) {
      resize_outs(info, arguments, !miss);  // on a miss, Meta has warned
      return run(op, stack);
    }
    (info.dynamic ? execute_dynamic : execute)(call.c, info, outputs);
  }
  push_results(op, outputs, stack);
}

// Explicit kernels hold their operator; the fallback looks it up per thread.
struct Kernel final : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
    const auto* op = op_.load(std::memory_order_acquire);
    if (C10_UNLIKELY(!op)) op_.store(op = &operator_for(handle), std::memory_order_release);
    run(*op, *stack);
  }
  std::atomic<const Operator*> op_{nullptr};
};

void fallback(const c10::OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
  static thread_local ska::flat_hash_map<const void*, const Operator*> known;
  const void* key = &handle.operator_name();
  const auto found = known.find(key);
  // operator_for may throw, and run may come back here: neither may see a half-made entry.
  const Operator* op = C10_LIKELY(found != known.end()) ? found->second : known[key] = &operator_for(handle);
  run(*op, *stack);
}

// An override of a CompositeImplicit operator would lose its autograd formula.
bool loses_autograd(const c10::OperatorHandle& handle) {
  return handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

void register_explicit(const c10::OperatorHandle& handle) {
  static auto& libraries = *new std::unordered_map<std::string, torch::Library*>;
  if (handle.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) return;
  const auto& name = handle.operator_name().name;
  auto& library = libraries[name.substr(0, name.find("::"))];
  if (!library) library = &keep_library(name.substr(0, name.find("::")).c_str(), c10::DispatchKey::PrivateUse1);
  library->impl(c10::toString(handle.operator_name()).c_str(),
                torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>()));
}

// Left to themselves, the in-place forms of structured operators would check shapes in C++ on every call and arrive as
// .out.
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

std::vector<const char*>& skipped() {
  static auto& names = *new std::vector<const char*>;
  return names;
}

}  // namespace

const char* const* skipped_ops() noexcept { return skipped().data(); }

void register_dispatch() {
  keep_library("_", c10::DispatchKey::PrivateUse1).fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  for (const char* const* name = core->native_ops(); *name; ++name) {
    const auto handle = c10::Dispatcher::singleton().findSchema(torch::jit::parseName(*name));
    if (handle && !loses_autograd(*handle)) {
      register_explicit(*handle);
      if (!handle->schema().is_mutable()) register_mutating_forms(*handle);
    } else {
      skipped().push_back(*name);
    }
  }
  skipped().push_back(nullptr);
}

}  // namespace tpu
