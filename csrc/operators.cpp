// Schemas: argument kinds, written arguments, functional forms.
#include "operators.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace tpu {
namespace {

using c10::TypeKind;

Return describe_return(const c10::FunctionSchema& schema, const c10::Argument& value) {
  const auto* alias = value.alias_info();
  for (size_t i = 0; alias && alias->isWrite() && i < schema.arguments().size(); ++i) {
    const auto* written = schema.arguments()[i].alias_info();
    if (written && written->isWrite() && written->beforeSets() == alias->beforeSets())
      return {Return::kArgument, static_cast<uint8_t>(i)};
  }
  const auto kind = value.type()->kind();
  return {kind == TypeKind::TensorType ? Return::kTensor
          : kind == TypeKind::ListType ? Return::kTensorList
                                       : Return::kNumber};
}

// Same argument types once out arguments are left out. 2: the names agree as well.
int match(const c10::FunctionSchema& mutating, const c10::FunctionSchema& candidate) {
  if (candidate.is_mutable()) return 0;
  int quality = 2;
  auto other = candidate.arguments().begin();
  for (const auto& argument : mutating.arguments()) {
    if (argument.is_out()) continue;
    if (other == candidate.arguments().end() || *argument.real_type() != *other->real_type()) return 0;
    if (argument.name() != (other++)->name()) quality = 1;
  }
  return other == candidate.arguments().end() ? quality : 0;
}

}  // namespace

std::vector<c10::OperatorHandle> overloads_of(const std::string& name) {
  static std::mutex mutex;
  static auto& index = *new std::unordered_map<std::string, std::vector<c10::OperatorHandle>>;
  const std::lock_guard<std::mutex> lock(mutex);
  // aten is complete once torch is imported; other libraries may appear later.
  if (index.empty() || (name.compare(0, 6, "aten::") != 0 && !index.count(name))) {
    auto& dispatcher = c10::Dispatcher::singleton();
    index.clear();
    for (const auto& op : dispatcher.getAllOpNames()) {
      if (auto handle = dispatcher.findSchema(op)) index[op.name].push_back(*handle);
    }
  }
  return index[name];
}

std::optional<c10::OperatorHandle> functional_form(const c10::OperatorHandle& handle) {
  if (!handle.schema().is_mutable()) return handle;
  auto base = handle.schema().name();
  if (const auto start = base.rfind(':') + 1; base.compare(start, 3, "__i") == 0) {
    base.erase(start + 2, 1);
  } else if (base.back() == '_' && base[base.size() - 2] != '_') {
    base.pop_back();
  }
  std::optional<c10::OperatorHandle> best;
  for (const auto& name : {base, base + "_functional"}) {
    int best_quality = 0;
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
  uint64_t mutated = 0;
  for (const auto& argument : handle.schema().arguments()) {
    const auto type = argument.type()->str();
    const bool writes = argument.alias_info() && argument.alias_info()->isWrite();
    mutated |= uint64_t{writes} << arguments.size();
    has_indices = has_indices || type == "Tensor?[]";
    arguments.push_back({type.find("Scalar") != std::string::npos, writes, argument.is_out()});
  }
  mutates = mutated != 0;
  for (const auto& value : handle.schema().returns()) {
    returns.push_back(describe_return(handle.schema(), value));
    single_outputs += returns.back().kind == Return::kTensor || returns.back().kind == Return::kNumber;
  }
  const auto name = c10::toString(handle.operator_name());
  const auto is_list = [](const Return& value) { return value.kind == Return::kTensorList; };
  TORCH_CHECK_NOT_IMPLEMENTED(std::count_if(returns.begin(), returns.end(), is_list) < 2, "tpu: '", name,
                              "' returns several tensor lists");
  const auto form = mutates && functional ? c10::toString(functional->operator_name()) : std::string();
  check(core->resolve(name.c_str(), form.c_str(), mutated, &id));
}

const Operator& operator_for(const c10::OperatorHandle& handle) {
  static std::mutex mutex;
  static auto& operators = *new std::unordered_map<c10::OperatorName, std::unique_ptr<Operator>>;
  static thread_local std::unordered_map<const void*, const Operator*> known;
  auto& op = known[&handle.operator_name()];
  if (C10_LIKELY(op != nullptr)) return *op;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& made = operators[handle.operator_name()];
  if (!made) made = std::make_unique<Operator>(handle);
  return *(op = made.get());
}

}  // namespace tpu
