// Operators as the core knows them.
#include "operators.h"

#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <mutex>
#include <unordered_map>

namespace tpu {

void declare_operators(std::string_view ns) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != ns) continue;
    if (const auto handle = dispatcher.findSchema(name)) core->declare(c10::toString(handle->schema()).c_str());
  }
}

std::optional<c10::OperatorHandle> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchema(torch::jit::parseName(name));
}

Operator::Operator(const c10::OperatorHandle& operator_handle) : abi::Operator{}, handle(operator_handle) {
  const auto name = c10::toString(handle.operator_name());
  const auto resolve = [&] { return core->resolve(name.c_str(), handle.hasTag(at::Tag::pointwise), this); };
  auto status = resolve();
  if (status == abi::Status::Miss) {
    declare_operators(handle.operator_name().getNamespace().value_or(""));
    status = resolve();
  }
  check(status);
  if (functional) functional_form = find_operator(functional);
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
