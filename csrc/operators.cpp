// Schemas: argument kinds, written arguments, functional forms, and the operators that get an explicit kernel.
#include "operators.h"

#include <ATen/core/jit_type.h>

#include <mutex>
#include <unordered_map>

namespace tpu {
namespace {

Argument describe_argument(const c10::Argument& argument) {
  Argument result;
  auto type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  auto element = type;
  if (auto list = type->cast<c10::ListType>()) {
    element = list->getElementType();
    const bool optional = element->kind() == c10::TypeKind::OptionalType;
    switch (element->kind()) {
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        result.kind = Argument::kIntList;
        break;
      case c10::TypeKind::FloatType:
        result.kind = Argument::kDoubleList;
        break;
      case c10::TypeKind::BoolType:
        result.kind = Argument::kBoolList;
        break;
      default:
        result.kind = Argument::kValueList;
    }
    result.is_index_list = optional;
  }
  result.is_scalar = element->kind() == c10::TypeKind::NumberType;
  result.mutated = argument.alias_info() && argument.alias_info()->isWrite();
  result.is_out = argument.is_out();
  return result;
}

Return describe_return(const c10::FunctionSchema& schema, const c10::Argument& value) {
  Return result;
  const auto* alias = value.alias_info();
  if (alias && alias->isWrite()) {
    const auto& arguments = schema.arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto* candidate = arguments[i].alias_info();
      if (candidate && candidate->isWrite() && candidate->beforeSets() == alias->beforeSets()) {
        result.kind = Return::kArgument;
        result.argument = static_cast<uint8_t>(i);
        return result;
      }
    }
  }
  switch (value.type()->kind()) {
    case c10::TypeKind::TensorType:
      result.kind = Return::kTensor;
      break;
    case c10::TypeKind::ListType:
      result.kind = Return::kTensorList;
      break;
    case c10::TypeKind::BoolType:
      result.kind = Return::kBool;
      break;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      result.kind = Return::kInt;
      break;
    case c10::TypeKind::FloatType:
    case c10::TypeKind::NumberType:
      result.kind = Return::kDouble;
      break;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "tpu: '", schema.operator_name(), "' returns ", value.type()->str(),
                                  ", which the device does not support");
  }
  return result;
}

bool is_mutable(const c10::FunctionSchema& schema) {
  return schema.is_mutable();
}

// Same argument types once out arguments are left out. 2: the names agree as well.
int match(const c10::FunctionSchema& mutating, const c10::FunctionSchema& candidate) {
  if (is_mutable(candidate)) return 0;
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

std::string functional_base(const c10::FunctionSchema& schema) {
  const auto& name = schema.name();
  const auto start = name.rfind(':') + 1;
  if (name.compare(start, 3, "__i") == 0) return name.substr(0, start) + "__" + name.substr(start + 3);
  return name.back() == '_' && name[name.size() - 2] != '_' ? name.substr(0, name.size() - 1) : name;
}

}  // namespace

c10::SmallVector<c10::OperatorHandle, 8> overloads_of(const std::string& name) {
  using Index = std::unordered_map<std::string, std::vector<c10::OperatorName>>;
  static std::mutex mutex;
  static Index index;
  auto& dispatcher = c10::Dispatcher::singleton();
  c10::SmallVector<c10::OperatorHandle, 8> result;
  const std::lock_guard<std::mutex> lock(mutex);
  // aten is complete once torch is imported; other libraries may appear later.
  if (index.empty() || (name.compare(0, 6, "aten::") != 0 && !index.count(name))) {
    index.clear();
    for (auto& op : dispatcher.getAllOpNames()) index[op.name].push_back(std::move(op));
  }
  const auto found = index.find(name);
  if (found == index.end()) return result;
  for (const auto& op : found->second) {
    if (auto handle = dispatcher.findSchema(op)) result.push_back(*handle);
  }
  return result;
}

std::optional<c10::OperatorHandle> functional_form(const c10::OperatorHandle& handle) {
  const auto& schema = handle.schema();
  if (!is_mutable(schema)) return handle;
  const auto base = functional_base(schema);
  for (const auto& name : {base, base + "_functional"}) {
    std::optional<c10::OperatorHandle> best;
    int best_match = 0;
    for (const auto& candidate : overloads_of(name)) {
      const int quality = match(schema, candidate.schema());
      if (quality > best_match) {
        best = candidate;
        best_match = quality;
      }
    }
    if (best) return best;
  }
  return std::nullopt;
}

Operator::Operator(const c10::OperatorHandle& operator_handle) : handle(operator_handle) {
  const auto& schema = handle.schema();
  uint64_t mutated = 0;
  for (const auto& argument : schema.arguments()) {
    arguments.push_back(describe_argument(argument));
    if (arguments.back().mutated) mutated |= uint64_t{1} << (arguments.size() - 1);
  }
  mutates = mutated != 0;
  uint32_t lists = 0;
  for (const auto& value : schema.returns()) {
    const auto* alias = value.alias_info();
    returns_view = returns_view || (alias && !alias->isWrite());
    returns.push_back(describe_return(schema, value));
    const auto kind = returns.back().kind;
    lists += kind == Return::kTensorList;
    fresh_scalars_and_tensors += kind != Return::kArgument && kind != Return::kTensorList;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(lists < 2, "tpu: '", schema.operator_name(), "' returns several tensor lists");
  functional = functional_form(handle);
  const char* functional_name = "";
  const char* functional_overload = "";
  if (functional && mutates) {
    functional_name = functional->schema().name().c_str();
    functional_overload = functional->schema().overload_name().c_str();
  }
  check(core->resolve(schema.name().c_str(), schema.overload_name().c_str(), functional_name, functional_overload,
                      mutated, &id));
}

const Operator& operator_for(const c10::OperatorHandle& handle) {
  static std::mutex mutex;
  static auto& operators = *new std::unordered_map<const void*, std::unique_ptr<Operator>>;
  const void* key = &handle.operator_name();
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = operators.find(key);
    if (found != operators.end()) return *found->second;
  }
  auto made = std::make_unique<Operator>(handle);  // calls the core: not under the lock
  const std::lock_guard<std::mutex> lock(mutex);
  auto& slot = operators[key];
  if (!slot) slot = std::move(made);
  return *slot;
}

}  // namespace tpu
