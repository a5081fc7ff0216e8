// Operators as the core knows them.
#include "operators.h"

#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

namespace tpu {

void declare_operators(std::string_view ns) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto handle = name.getNamespace() == ns ? dispatcher.findSchema(name) : std::nullopt;
    if (handle) core->declare(c10::toString(handle->schema()).c_str(), is_structured(*handle));
  }
}

std::optional<c10::OperatorHandle> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchema(torch::jit::parseName(name));
}

Operator::Operator(const c10::OperatorHandle& operator_handle) : abi::Operator{}, handle(operator_handle) {
  const auto name = c10::toString(handle.operator_name());
  const auto resolve = [&] { return core->resolve(name.c_str(), handle.hasTag(at::Tag::pointwise), this); };
  if (resolve() == abi::Status::Miss) declare_operators(handle.operator_name().getNamespace().value_or(""));
  check(resolve());
  if (functional) functional_form = find_operator(functional);
}

namespace {

std::mutex mutex;
auto& operators = *new std::unordered_map<c10::OperatorName, const Operator*>;
std::atomic<uint64_t> removals = 0;

// A library that is destroyed, as when a notebook's cell defines its operator again, frees operators whose names and
// addresses may then be those of others.
struct RemovalListener final : c10::OpRegistrationListener {
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& handle) override {
    const std::string ns(handle.operator_name().getNamespace().value_or(""));
    const std::lock_guard<std::mutex> lock(mutex);
    // Not freed: another thread may be inside.
    std::erase_if(operators, [&](const auto& known) { return known.first.getNamespace() == ns; });
    core->forget(ns.c_str());
    ++removals;
  }
};

}  // namespace

const Operator& operator_for(const c10::OperatorHandle& handle) {
  [[maybe_unused]] static auto& listening = *new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<RemovalListener>()));
  static thread_local std::unordered_map<const void*, const Operator*> recent;
  static thread_local uint64_t removals_seen = 0;
  if (C10_UNLIKELY(removals != removals_seen)) {
    recent.clear();
    removals_seen = removals;
  }
  auto& op = recent[&handle.operator_name()];
  if (C10_LIKELY(op != nullptr)) return *op;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& made = operators[handle.operator_name()];
  if (!made) made = new Operator(handle);
  return *(op = made);
}

}  // namespace tpu
