// Schemas: argument kinds, written arguments, functional forms.
#include "operators.h"

#include <ATen/core/jit_type.h>

#include <mutex>
#include <unordered_map>

namespace tpu {
namespace {

using c10::TypeKind;

Argument describe_argument(const c10::Argument& argument) {
  Argument result;
  auto type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (auto list = type->cast<c10::ListType>()) {
    type = list->getElementType();
    const auto kind = type->kind();
    result.kind = kind == TypeKind::IntType || kind == TypeKind::SymIntType ? Argument::kIntList
                  : kind == TypeKind::FloatType                             ? Argument::kDoubleList
                  : kind == TypeKind::BoolType                              ? Argument::kBoolList
                                                                            : Argument::kValueList;
    result.is_index_list = kind == TypeKind::OptionalType;
  }
  result.is_scalar = type->kind() == TypeKind::NumberType;
  result.mutated = argument.alias_info() && argument.alias_info()->isWrite();
  result.is_out = argument.is_out();
  return result;
}

Return describe_return(const c10::FunctionSchema& schema, const c10::Argument& value) {
  if (const auto* alias = value.alias_info(); alias && alias->isWrite()) {
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      const auto* written = schema.arguments()[i].alias_info();
      if (written && written->isWrite() && written->beforeSets() == alias->beforeSets())
        return {Return::kArgument, static_cast<uint8_t>(i)};
    }
  }
  const auto kind = value.type()->kind();
  return {kind == TypeKind::TensorType ? Return::kTensor
          : kind == TypeKind::ListType ? Return::kTensorList
                                       : Return::kNumber};
}

// Same argument types once out arguments are left out. 2: the names agree as well.
int match(const c10::FunctionSchema& mutating, const c10::FunctionSchema& candidate) {
  if (candidate.is_mutable()) return 0;
  bool same_names = true;
  size_t next = 0;
  for (const auto& argument : mutating.arguments()) {
    if (argument.is_out()) continue;
    if (next == candidate.arguments().size()) return 0;
    const auto& other = candidate.arguments()[next++];
    if (*argument.real_type() != *other.real_type()) return 0;
    same_names = same_names && argument.name() == other.name();
  }
  return next != candidate.arguments().size() ? 0 : same_names ? 2 : 1;
}

std::string functional_name(const std::string& name) {
  const auto start = name.rfind(':') + 1;
  if (name.compare(start, 3, "__i") == 0) return name.substr(0, start) + "__" + name.substr(start + 3);
  return name.back() == '_' && name[name.size() - 2] != '_' ? name.substr(0, name.size() - 1) : name;
}

}  // namespace

c10::SmallVector<c10::OperatorHandle, 8> overloads_of(const std::string& name) {
  static std::mutex mutex;
  static auto& index = *new std::unordered_map<std::string, std::vector<c10::OperatorName>>;
  auto& dispatcher = c10::Dispatcher::singleton();
  c10::SmallVector<c10::OperatorHandle, 8> result;
  const std::lock_guard<std::mutex> lock(mutex);
  // aten is complete once torch is imported; other libraries may appear later.
  if (index.empty() || (name.compare(0, 6, "aten::") != 0 && !index.count(name))) {
    index.clear();
    for (auto& op : dispatcher.getAllOpNames()) index[op.name].push_back(std::move(op));
  }
  for (const auto& op : index[name]) {
    if (auto handle = dispatcher.findSchema(op)) result.push_back(*handle);
  }
  return result;
}

std::optional<c10::OperatorHandle> functional_form(const c10::OperatorHandle& handle) {
  if (!handle.schema().is_mutable()) return handle;
  const auto base = functional_name(handle.schema().name());
  std::optional<c10::OperatorHandle> best;
  int best_quality = 0;
  for (const auto& name : {base, base + "_functional"}) {
    for (const auto& candidate : overloads_of(name)) {
      const int quality = match(handle.schema(), candidate.schema());
      if (quality > best_quality) best = candidate, best_quality = quality;
    }
    if (best) break;
  }
  return best;
}

Operator::Operator(const c10::OperatorHandle& operator_handle)
    : handle(operator_handle), functional(functional_form(operator_handle)) {
  const auto& schema = handle.schema();
  uint64_t mutated = 0;
  for (const auto& argument : schema.arguments()) {
    const auto described = describe_argument(argument);
    mutated |= uint64_t{described.mutated} << arguments.size();
    has_index_list = has_index_list || described.is_index_list;
    writes_lists = writes_lists || (described.mutated && described.kind == Argument::kValueList);
    arguments.push_back(described);
  }
  mutates = mutated != 0;
  writes_lists = writes_lists && handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  size_t lists = 0;
  for (const auto& value : schema.returns()) {
    returns.push_back(describe_return(schema, value));
    lists += returns.back().kind == Return::kTensorList;
    single_outputs += returns.back().kind == Return::kTensor || returns.back().kind == Return::kNumber;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(lists < 2, "tpu: '", schema.operator_name(), "' returns several tensor lists");
  const auto* form = mutates && functional ? &functional->schema() : nullptr;
  check(core->resolve(schema.name().c_str(), schema.overload_name().c_str(), form ? form->name().c_str() : "",
                      form ? form->overload_name().c_str() : "", mutated, &id));
}

const Operator& operator_for(const c10::OperatorHandle& handle) {
  static std::mutex mutex;
  static auto& operators = *new std::unordered_map<const void*, std::unique_ptr<Operator>>;
  const void* key = &handle.operator_name();
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (const auto found = operators.find(key); found != operators.end()) return *found->second;
  }
  auto made = std::make_unique<Operator>(handle);  // calls the core: not under the lock
  const std::lock_guard<std::mutex> lock(mutex);
  return *operators.try_emplace(key, std::move(made)).first->second;
}

}  // namespace tpu
